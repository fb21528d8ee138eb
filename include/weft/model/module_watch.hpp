// model/module_watch.hpp -- the module is still the one that setup saw.
// In: a module and the table of its parameters, after setup; the module again, before a forward that trains. Out:
// nothing, or an error that names what was registered, replaced or removed since.
#pragma once

#include <cstddef>
#include <vector>

#include <torch/nn/module.h>

#include <weft/model/parameter_table.hpp>

namespace weft::inline v0::model {

/// Parameters by identity, in the order of a walk over the module: a pointer each, and no name is looked at.
class ModuleWatch {
 public:
  void remember(torch::nn::Module const& module);
  /// Whether a walk meets the same parameters, in the same order; true if none were remembered. Local, and cheap enough
  /// for every forward.
  bool is_same(torch::nn::Module const& module) const;
  /// Throws, and says what is different. `global_rank` for the text.
  [[noreturn]] static void refuse(torch::nn::Module const& module, ParameterTable const& table, int global_rank);

 private:
  std::vector<at::TensorImpl const*> parameters_;  // the table keeps them alive
  bool remembers_ = false;
};

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/module_watch.ipp>
#endif
