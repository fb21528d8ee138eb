// comm/streams.hpp -- the rule by which memory of an accelerator goes back to its allocator.
// In: a tensor that kernels and collectives have used. Out: its memory is handed on only after them.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::inline v0::comm {

/// [Note: memory belongs to a stream] CUDA's caching allocator hands freed memory on at once, to later work of the
/// stream on which it was allocated. That is right for kernels of this stream, and for a collective, which runs on a
/// stream of its backend, as soon as this stream waits for it. So tensors of a collective are kept until
/// Pending::wait(), which makes the current stream wait, and only then freed or released; a gathered storage is
/// released after its last kernel was launched. Where the current stream is not the allocating one (a forward under a
/// stream guard, a backward outside of it), the allocator has to be told: it then keeps the memory until the current
/// stream is where it is now. Told of the allocating stream it does nothing.
void used_on_current_stream(at::Tensor const& tensor);

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/streams.ipp>
#endif
