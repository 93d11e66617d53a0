/* CPython 3.12: the evaluation clears and pops its frame, and a code object has its frames' size.
 *
 * Frames are all as in `common.h`.
 */
