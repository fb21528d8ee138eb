// unit/walk.hpp -- modules with their paths.
// In: a root module. Out: a call for each module in it, the root first, parents before children, in registration order.
#pragma once

#include <string>

#include <torch/nn/module.h>

namespace weft::inline v0::unit {

inline std::string join_path(std::string const& prefix, std::string const& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// f(path, module). Unlike torch::nn::Module::named_modules, it takes a root that no shared_ptr owns. A module that is
// registered twice comes twice.
template <class F>
void for_each_module(torch::nn::Module& root, F&& f, std::string const& path = {}) {
  f(path, root);
  for (auto const& child : root.named_children())
    if (child.value()) for_each_module(*child.value(), f, join_path(path, child.key()));
}

}  // namespace weft::unit
