// comm/simulated.ipp -- definitions of comm/simulated.hpp.
#pragma once

#include <weft/comm/simulated.hpp>

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE auto SimulatedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             c10d::AllgatherOptions const&) -> Handle {
  at::NoGradGuard const no_grad;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (auto& output : outputs[i]) output.copy_(inputs[i]);
  return done(outputs.empty() ? Tensors() : outputs.front());
}

WEFT_INLINE auto SimulatedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        c10d::ReduceScatterOptions const& options) -> Handle {
  at::NoGradGuard const no_grad;
  output.view({-1}).copy_(input.view({getSize(), output.numel()})[getRank()]);
  reduce_equals(output, options.reduceOp);
  // Memory as a real rank has it: comm/gloo.hpp receives the other ranks' chunks, one of them in the output.
  auto const received = input.is_cpu() ? at::empty({std::max(0, getSize() - 2) * output.numel()}, output.options())
                                       : at::Tensor();
  return c10::make_intrusive<Done>(Tensors{output}, received);
}

WEFT_INLINE auto SimulatedBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  c10d::ReduceScatterOptions const& options) -> Handle {
  at::NoGradGuard const no_grad;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].copy_(inputs[i][static_cast<std::size_t>(getRank())]);
    reduce_equals(outputs[i], options.reduceOp);
  }
  return done(outputs);
}

WEFT_INLINE auto SimulatedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_sizes,
                                                 std::vector<std::int64_t>& input_sizes, c10d::AllToAllOptions const&)
    -> Handle {
  TORCH_CHECK(output_sizes.empty() && input_sizes.empty(),
              "weft: Simulated: all_to_all with uneven splits depends on what the other ranks send");
  repeat(output, input.view({getSize(), -1})[getRank()]);
  return done({output});
}

WEFT_INLINE c10::intrusive_ptr<c10::ivalue::Future> SimulatedBackend::Done::getFuture() {  // c10d::Reducer asks for it
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(outputs_));
  return future;
}

WEFT_INLINE void SimulatedBackend::repeat(at::Tensor const& output, at::Tensor const& input) const {
  at::NoGradGuard const no_grad;
  // This rank's own slot may be the input itself. One call, whatever the number of ranks.
  auto const source = output.is_alias_of(input) ? input.clone() : input;
  output.view({getSize(), input.numel()}).copy_(source.view({1, input.numel()}).expand({getSize(), input.numel()}));
}

WEFT_INLINE void SimulatedBackend::reduce_equals(at::Tensor const& tensor, c10d::ReduceOp const& op) const {
  at::NoGradGuard const no_grad;
  if (op == c10d::ReduceOp::SUM) tensor.mul_(getSize());
  if (op == c10d::ReduceOp::PRODUCT) tensor.pow_(getSize());
}

WEFT_INLINE int ring_steps(Kind kind, int group_size) {
  if (group_size <= 1) return 0;
  switch (kind) {
    case Kind::all_reduce:
      return 2 * (group_size - 1);
    case Kind::send:
    case Kind::recv:
      return 1;
    default:
      return group_size - 1;
  }
}

}  // namespace weft::comm
