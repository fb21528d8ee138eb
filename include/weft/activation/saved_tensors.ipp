// activation/saved_tensors.ipp -- definitions of activation/saved_tensors.hpp.
#pragma once

#include <weft/activation/saved_tensors.hpp>

#include <typeinfo>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::activation::detail {

WEFT_INLINE auto HookEngine::stack() -> Stack& {
  auto& engine = Engine::get_default_engine();
  if (&engine == &instance()) return instance().own_stack();
  if (auto* const other = dynamic_cast<HookEngine*>(&engine)) return other->own_stack();
  if (typeid(engine) != typeid(Engine))
    fail<ConfigurationError>(
        "weft: saved-tensor hooks need weft's autograd engine, and this process has another one, such as Python's: "
        "use that one's hooks, "
        "or run the program without it");
  torch::autograd::set_default_engine_stub(&HookEngine::get);
  return instance().own_stack();
}

WEFT_INLINE void require_unpacked(at::Tensor const& tensor, at::IntArrayRef sizes, at::TensorOptions const& options) {
  if (!tensor.defined())
    fail<ConfigurationError>("weft: saved_tensors: unpack returned an undefined tensor, and backward needs one of ",
                             sizes, " of ", options.dtype(), " on ", options.device());
  if (tensor.sizes() != sizes || tensor.dtype() != options.dtype() || tensor.device() != options.device())
    fail<ConfigurationError>("weft: saved_tensors: unpack returned a tensor of ", tensor.sizes(), " of ",
                             tensor.dtype(), " on ", tensor.device(), ", and backward needs what was packed: ", sizes,
                             " of ", options.dtype(), " on ", options.device());
}

}  // namespace weft::activation::detail
