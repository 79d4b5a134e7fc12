/* address.cl: where a buffer lies in the device's memory, asked once of each
 * (device/buf.c). Built without FOLIO_ADDRESSES, so that it may be asked. */

__kernel void buf_address(__global const uchar *buf, __global ulong *out)
{
    out[0] = (ulong)buf;
}
