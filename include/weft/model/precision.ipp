// model/precision.ipp -- definitions of model/precision.hpp.
#pragma once

#include <weft/model/precision.hpp>

#include <ATen/core/grad_mode.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/device_mesh.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/build.hpp>
#include <weft/init/deferred_init.hpp>

namespace weft::inline v0::model {

WEFT_INLINE void collect_conversions(torch::nn::Module const& module, std::string const& path,
                                     precision::Rules const& rules, Conversions& all) {
  auto const add = [&](at::Tensor const& tensor, at::ScalarType dtype) {
    if (dtype != tensor.scalar_type()) all.emplace(tensor.unsafeGetTensorImpl(), std::pair(tensor, dtype));
  };
  auto const converts = [](at::Tensor const& tensor) { return tensor.defined() && tensor.is_floating_point(); };
  for (auto const& item : module.named_parameters(/*recurse=*/false))
    if (converts(item.value()))
      add(item.value(), rules.parameter_dtype(module, unit::join_path(path, item.key()), item.value()));
  for (auto const& item : module.named_buffers(/*recurse=*/false))
    if (converts(item.value()))
      add(item.value(), rules.buffer_dtype(module, unit::join_path(path, item.key()), item.value()));
  for (auto const& child : module.named_children())
    if (child.value()) collect_conversions(*child.value(), unit::join_path(path, child.key()), rules, all);
}

WEFT_INLINE void convert(at::Tensor const& tensor, at::ScalarType dtype) {
  at::NoGradGuard const no_grad;
  auto const gradient = tensor.grad();
  if (gradient.defined()) tensor.mutable_grad() = at::Tensor();
  tensor.set_data(tensor.detach().to(dtype));
  if (gradient.defined()) tensor.mutable_grad() = gradient.to(dtype);
}

WEFT_INLINE Conversions convert(torch::nn::Module& module, precision::Rules const& rules, bool leaves_deferred) {
  Conversions left;
  collect_conversions(module, "", rules, left);
  auto const convert_one = [&](at::Tensor const& tensor) {
    auto const found = left.find(tensor.unsafeGetTensorImpl());
    if (found == left.end()) return;
    convert(found->second.first, found->second.second);
    left.erase(found);
  };
  bool const waits = std::any_of(left.begin(), left.end(),
                                 [](auto const& entry) { return init::is_deferred(entry.second.first); });
  if (waits && !leaves_deferred) init::initialize(module, convert_one);
  std::vector<at::Tensor> rest;
  for (auto const& entry : left)
    if (!init::is_deferred(entry.second.first)) rest.push_back(entry.second.first);
  for (auto const& tensor : rest) convert_one(tensor);
  return left;
}

WEFT_INLINE precision::LossScaler::Agree agreement_over(std::shared_ptr<comm::Session> const& session,
                                                        ParameterTable const& table,
                                                        std::vector<at::Tensor> const& parameters) {
  std::vector<std::string> axes;
  for (auto const& parameter : parameters)
    if (auto const row = table.index_of(parameter))
      for (auto& axis : divided_over(table.rows()[*row]))
        if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(std::move(axis));
  if (axes.empty()) return {};
  // An optimizer may outlive its model, and the session its groups. tests/shard/precision.cpp
  return [session, axes = std::move(axes)](at::Tensor const& found) {
    for (auto const& axis : axes)
      if (auto const& ranks = session->mesh->axis(axis)) ranks->all_reduce(found, ReduceOp::max);
  };
}

WEFT_INLINE precision::LossScaler::Scale scale_by(std::vector<std::weak_ptr<Engine>> engines) {
  return [engines = std::move(engines)](at::Tensor const& parameter, at::Tensor const& factor) {
    return std::any_of(engines.begin(), engines.end(), [&](auto const& engine) {
      auto const alive = engine.lock();
      return alive && alive->scale_gradient(parameter, factor);
    });
  };
}

}  // namespace weft::model
