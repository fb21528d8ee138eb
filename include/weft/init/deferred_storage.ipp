// init/deferred_storage.ipp -- definitions of init/deferred_storage.hpp.
#pragma once

#include <weft/init/deferred_storage.hpp>

#include <utility>

#include <weft/core/build.hpp>

namespace weft::inline v0::init::detail {

WEFT_INLINE at::Tensor make_marked(c10::Storage storage, c10::DispatchKeySet keys, at::Tensor const& shape) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys.add(mark), shape.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return tensor;
}

WEFT_INLINE void unmark(c10::TensorImpl& tensor) {
  if (!tensor.key_set().has(mark) || tensor.is_inference()) return;  // a copy of which would be none
  auto const plain = c10::make_intrusive<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set().remove(mark),
                                                          tensor.dtype());
  plain->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  tensor.shallow_copy_from(plain);
}

}  // namespace weft::init::detail
