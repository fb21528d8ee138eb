// comm/communicator.ipp -- definitions of comm/communicator.hpp.
#pragma once

#include <weft/comm/communicator.hpp>

#include <algorithm>

#include <ATen/ATen.h>

#include <weft/comm/streams.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE char const* not_sendable(at::Tensor const& tensor) {
  if (!tensor.defined()) return "the tensor is undefined; pass one with a shape and a dtype";
  if (tensor.layout() != at::kStrided) return "the tensor is not dense; pass .to_dense()";
  if (tensor.is_conj() || tensor.is_neg())
    return "the tensor is conjugated or negated when it is read, not in memory; pass .resolve_conj().resolve_neg()";
  return nullptr;
}

WEFT_INLINE Communicator::Communicator(c10::intrusive_ptr<c10d::Backend> backend, c10d::ProcessGroup::BackendType type,
                                       c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Recorder> recorder,
                                       std::string axis, at::Device device, std::optional<CallCheck> check)
    : store_(std::move(store)),
      type_(type),
      device_(device),
      axis_(std::move(axis)),
      recorder_(std::move(recorder)),
      backend_(c10::make_intrusive<TracedBackend>(std::move(backend), recorder_, axis_, std::move(check))) {}

WEFT_INLINE std::shared_ptr<void> Communicator::register_buffer(at::Tensor const& tensor) const {
  auto* const registers = dynamic_cast<RegistersBuffers*>(connection().get());
  return registers && tensor.nbytes() > 0 ? registers->register_buffer(tensor) : nullptr;
}

WEFT_INLINE c10::intrusive_ptr<c10d::ProcessGroup> const& Communicator::process_group() {
  if (!group_) {
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
    group_->setBackend(device_.type(), type_, backend());
    group_->setDefaultBackend(type_);
  }
  return group_;
}

WEFT_INLINE Pending Communicator::all_reduce_async(at::Tensor tensor, ReduceOp op, std::string_view purpose) {
  tensor = target("all_reduce", tensor);
  check_reduction("all_reduce", op, tensor);
  if (is_nothing(Kind::all_reduce, tensor)) return {};
  auto buffer = tensor.contiguous();
  auto const divisors = divisors_of(op, tensor);
  if (divisors.before != 1) buffer.div_(divisors.before);
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  std::vector<at::Tensor> list{reduced_as(buffer)};
  return issue(
      "all_reduce", purpose, [&] { return backend_->allreduce(list, options); }, {buffer, tensor},
      [tensor, buffer, divisors]() mutable {
        divisors.divide(buffer);
        if (!buffer.is_same(tensor)) tensor.copy_(buffer);
      });
}

WEFT_INLINE Pending Communicator::all_gather_into_async(at::Tensor output, at::Tensor input, std::string_view purpose) {
  output = target("all_gather_into", output);
  require_sendable("all_gather_into", input);
  check_pair("all_gather_into", output, input, input.numel() * size());
  if (is_nothing(Kind::all_gather, output)) return {};
  auto flat_output = moved_as(output), flat_input = moved_as(input);
  return issue("all_gather_into", purpose,
               [&] { return backend_->_allgather_base(flat_output, flat_input, c10d::AllgatherOptions()); },
               {output, input});
}

WEFT_INLINE std::vector<at::Tensor> Communicator::all_gather_uneven(at::Tensor const& tensor) {
  constexpr int64_t max_dims = 30;
  require_sendable("all_gather_uneven", tensor);
  if (tensor.dim() > max_dims)
    fail<CommunicationError>("weft: ", what("all_gather_uneven"), ": a tensor of ", tensor.dim(), " dims; at most ",
                             max_dims, " are told to other ranks");
  std::vector<int64_t> mine{static_cast<int64_t>(tensor.scalar_type()), tensor.dim()};
  mine.insert(mine.end(), tensor.sizes().begin(), tensor.sizes().end());
  mine.resize(2 + max_dims);
  auto const header = at::tensor(mine, at::kLong).to(device_);
  auto headers = at::empty({size(), header.numel()}, header.options());
  all_gather_into(headers, header);
  headers = headers.cpu();
  std::vector<at::Tensor> result;
  int64_t most = 0;
  for (int other = 0; other < size(); ++other) {
    auto const* const theirs = headers[other].const_data_ptr<int64_t>();
    if (theirs[0] != mine[0])
      fail<CommunicationError>("weft: ", what("all_gather_uneven"), ": rank ", other, " has ",
                               static_cast<at::ScalarType>(theirs[0]), ", this rank ", tensor.scalar_type(),
                               "; convert to one dtype");
    result.push_back(at::empty(at::IntArrayRef(theirs + 2, static_cast<std::size_t>(theirs[1])),
                               tensor.options().requires_grad(false)));
    most = std::max(most, result.back().numel());
  }
  auto const padded = at::zeros({most}, result.front().options()), all = at::empty({size(), most}, padded.options());
  padded.narrow(0, 0, tensor.numel()).copy_(tensor.detach().reshape({-1}));
  all_gather_into(all, padded);
  for (int other = 0; other < size(); ++other) {
    auto& theirs = result[static_cast<std::size_t>(other)];
    theirs.copy_(all[other].narrow(0, 0, theirs.numel()).view(theirs.sizes()));
  }
  return result;
}

WEFT_INLINE Pending Communicator::reduce_scatter_into_async(at::Tensor output, at::Tensor input, ReduceOp op,
                                                            std::string_view purpose) {
  output = target("reduce_scatter_into", output);
  input = target("reduce_scatter_into", input);
  check_reduction("reduce_scatter_into", op, input);
  check_pair("reduce_scatter_into", output, input, output.numel() * size(), /*gathers=*/false);
  if (is_nothing(Kind::reduce_scatter, input)) return {};
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d_op(op);
  auto const divisors = divisors_of(op, input);
  if (divisors.before != 1) input.div_(divisors.before);
  auto flat_output = reduced_as(output.view({-1})), flat_input = reduced_as(input.view({-1}));
  return issue(
      "reduce_scatter_into", purpose, [&] { return backend_->_reduce_scatter_base(flat_output, flat_input, options); },
      {output, input}, [output, divisors]() mutable { divisors.divide(output); });
}

WEFT_INLINE Pending Communicator::broadcast_async(at::Tensor tensor, int source) {
  check_peer("broadcast", "source", source);
  tensor = target("broadcast", tensor);
  if (is_nothing(Kind::broadcast, tensor)) return {};
  auto buffer = tensor.contiguous();
  c10d::BroadcastOptions options;
  options.rootRank = source;
  std::vector<at::Tensor> list{moved_as(buffer)};
  return issue(
      "broadcast", {}, [&] { return backend_->broadcast(list, options); }, {buffer, tensor}, copy_back(tensor, buffer));
}

WEFT_INLINE Pending Communicator::gather_into_async(std::vector<at::Tensor> outputs, at::Tensor const& tensor,
                                                    int destination) {
  check_peer("gather", "destination", destination);
  require_sendable("gather", tensor);
  if (auto const wanted = rank() == destination ? static_cast<std::size_t>(size()) : 0; outputs.size() != wanted)
    fail<CommunicationError>("weft: ", what("gather"), ": ", outputs.size(), " outputs on rank ", rank(), "; pass ",
                             size(), " on rank ", destination, ", and none elsewhere");
  auto input = tensor.detach().contiguous();
  std::vector<at::Tensor> buffers;
  for (auto& output : outputs) {
    output = target("gather", output);
    if (output.sizes() != tensor.sizes() || output.scalar_type() != tensor.scalar_type())
      fail<CommunicationError>("weft: ", what("gather"), ": an output is ", output.sizes(), " of ",
                               output.scalar_type(), ", the tensor ", tensor.sizes(), " of ", tensor.scalar_type(),
                               "; all must be alike");
    input = apart(input, output);
    buffers.push_back(output.contiguous());
  }
  if (is_nothing(Kind::gather, tensor)) return {};
  std::vector<std::vector<at::Tensor>> targets;
  if (!buffers.empty()) targets.emplace_back();
  for (auto const& buffer : buffers) targets.front().push_back(moved_as(buffer));
  c10d::GatherOptions options;
  options.rootRank = destination;
  std::vector<at::Tensor> inputs{moved_as(input)}, kept{input};
  kept.insert(kept.end(), buffers.begin(), buffers.end());
  return issue(
      "gather", {}, [&] { return backend_->gather(targets, inputs, options); }, std::move(kept),
      [outputs = std::move(outputs), buffers] {
        for (std::size_t i = 0; i < outputs.size(); ++i)
          if (!buffers[i].is_same(outputs[i])) outputs[i].copy_(buffers[i]);
      });
}

WEFT_INLINE std::vector<at::Tensor> Communicator::gather(at::Tensor const& tensor, int destination) {
  require_sendable("gather", tensor);
  std::vector<at::Tensor> result;
  for (int other = 0; rank() == destination && other < size(); ++other)
    result.push_back(
        at::empty(tensor.sizes(), tensor.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous)));
  gather_into(result, tensor, destination);
  return result;
}

WEFT_INLINE Pending Communicator::scatter_into_async(at::Tensor output, std::vector<at::Tensor> const& parts,
                                                     int source) {
  check_peer("scatter_into", "source", source);
  output = target("scatter_into", output);
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank() == source) {
    if (static_cast<int>(parts.size()) != size())
      fail<CommunicationError>("weft: ", what("scatter_into"), ": ", parts.size(), " parts for ", size(),
                               " ranks; pass one for each");
    for (auto const& part : parts) {
      require_sendable("scatter_into", part);
      if (part.sizes() != output.sizes() || part.scalar_type() != output.scalar_type())
        fail<CommunicationError>("weft: ", what("scatter_into"), ": a part is ", part.sizes(), " of ",
                                 part.scalar_type(), ", the output ", output.sizes(), " of ", output.scalar_type(),
                                 "; all must be alike");
    }
    inputs.emplace_back();
    for (auto const& part : parts) inputs.back().push_back(moved_as(apart(part.detach().contiguous(), output)));
  }
  if (is_nothing(Kind::scatter, output)) return {};
  auto buffer = output.contiguous();
  std::vector<at::Tensor> outputs{moved_as(buffer)}, kept{buffer, output};
  if (!inputs.empty()) kept.insert(kept.end(), inputs.front().begin(), inputs.front().end());
  c10d::ScatterOptions options;
  options.rootRank = source;
  return issue(
      "scatter_into", {}, [&] { return backend_->scatter(outputs, inputs, options); }, std::move(kept),
      copy_back(output, buffer));
}

WEFT_INLINE Pending Communicator::all_to_all_into_async(at::Tensor output, at::Tensor const& input) {
  output = target("all_to_all_into", output);
  require_sendable("all_to_all_into", input);
  if (output.sizes() != input.sizes() || input.dim() == 0 || input.size(0) % size() != 0)
    fail<CommunicationError>("weft: ", what("all_to_all_into"), ": input ", input.sizes(), ", output ", output.sizes(),
                             "; both must have one shape, whose first size ", size(), " ranks divide");
  std::vector<int64_t> const equal(static_cast<std::size_t>(size()), input.size(0) / size());
  if (is_nothing(Kind::all_to_all, input)) return {};
  return all_to_all_into_async(std::move(output), input, equal, equal);
}

WEFT_INLINE Pending Communicator::all_to_all_into_async(at::Tensor output, at::Tensor const& input,
                                                        std::vector<int64_t> const& output_sizes,
                                                        std::vector<int64_t> const& input_sizes) {
  output = target("all_to_all_into", output);
  require_sendable("all_to_all_into", input);
  if (output.scalar_type() != input.scalar_type())
    fail<CommunicationError>("weft: ", what("all_to_all_into"), ": output is ", output.scalar_type(), ", input is ",
                             input.scalar_type(), "; write one dtype");
  auto buffer = output.contiguous();
  auto flat_output = moved_as(buffer), flat_input = moved_as(apart(input.detach().contiguous(), buffer));
  auto output_counts = counts("output", output, output_sizes, flat_output),
       input_counts = counts("input", input, input_sizes, flat_input);
  return issue(
      "all_to_all_into", {},
      [&] {
        return backend_->alltoall_base(flat_output, flat_input, output_counts, input_counts, c10d::AllToAllOptions());
      },
      {buffer, output, flat_input}, copy_back(output, buffer));
}

WEFT_INLINE Pending Communicator::send_async(at::Tensor const& tensor, int to, int tag) {
  check_message("send", to, tag);
  require_sendable("send", tensor);
  if (tensor.numel() == 0) return {};
  std::vector<at::Tensor> list{moved_as(tensor.detach().contiguous())};
  return issue("send", {}, [&] { return backend_->send(list, to, tag); }, list);
}

WEFT_INLINE Pending Communicator::receive_into_async(at::Tensor tensor, int from, int tag) {
  check_message("receive_into", from, tag);
  tensor = target("receive_into", tensor);
  if (tensor.numel() == 0) return {};
  auto buffer = tensor.contiguous();
  std::vector<at::Tensor> list{moved_as(buffer)};
  return issue(
      "receive_into", {}, [&] { return backend_->recv(list, from, tag); }, {buffer, tensor}, copy_back(tensor, buffer));
}

WEFT_INLINE c10d::ReduceOp Communicator::c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    default:
      return c10d::ReduceOp::SUM;  // Gloo has no average: the sum is divided afterwards
  }
}

WEFT_INLINE auto Communicator::divisors_of(ReduceOp op, at::Tensor const& tensor) const -> Divisors {
  if (op != ReduceOp::average) return {};
  if (tensor.scalar_type() == at::kFloat) return {1, static_cast<double>(size()), size_float_};
  double const before = tensor.scalar_type() == at::kHalf ? divisor_before_sum(size()) : 1.0;
  return {before, size() / before};
}

WEFT_INLINE at::Tensor Communicator::reduced_as(at::Tensor const& dense) {
  if (dense.scalar_type() == at::kBool) return dense.view(at::kByte);
  return dense.is_complex() ? at::view_as_real(dense) : dense;
}

WEFT_INLINE void Communicator::check_reduction(char const* call, ReduceOp op, at::Tensor const& tensor) const {
  auto const type = tensor.scalar_type();
  bool const sums = op == ReduceOp::sum || op == ReduceOp::average;
  if (op == ReduceOp::average && !tensor.is_floating_point() && !tensor.is_complex())
    fail<CommunicationError>(
        "weft: ", what(call), ": an average of ", type,
        " would have to round; reduce with ReduceOp::sum and divide, or convert to a floating dtype");
  if (type == at::kBool && sums)
    fail<CommunicationError>("weft: ", what(call),
                             ": a sum of Bool; write ReduceOp::max for or, ReduceOp::min for and, or convert to count");
  if (tensor.is_complex() && (!sums || type == at::kComplexHalf))
    fail<CommunicationError>("weft: ", what(call), ": ", type,
                             " has no such reduction; complex float and double are summed and averaged");
  if (!is_reducible(type) && type != at::kBool && !tensor.is_complex())
    fail<CommunicationError>(
        "weft: ", what(call), ": ", type,
        " is moved but not reduced; convert to Float, Double, Half, BFloat16, Char, Byte, Int or Long");
}

WEFT_INLINE at::Tensor Communicator::target(char const* call, at::Tensor const& tensor) const {
  require_sendable(call, tensor);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    fail<CommunicationError>("weft: ", what(call),
                             ": elements of the tensor share memory, as after expand(); pass .contiguous(), or the "
                             "tensor before it was expanded");
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

WEFT_INLINE std::string Communicator::what(char const* call, std::string_view purpose) const {
  return std::string(call) + (purpose.empty() ? "" : " for ") + std::string(purpose) + " on axis " + axis_ + ", rank " +
         std::to_string(rank()) + " of " + std::to_string(size());
}

WEFT_INLINE void Communicator::check_peer(char const* call, char const* role, int peer) const {
  if (peer < 0 || peer >= size())
    fail<CommunicationError>("weft: ", what(call), ": ", role, " ", peer, " is not a rank of the group; write 0 to ",
                             size() - 1);
}

WEFT_INLINE void Communicator::check_message(char const* call, int peer, int tag) const {
  check_peer(call, "peer", peer);
  if (peer == rank())
    fail<CommunicationError>("weft: ", what(call), ": peer ", peer, " is this rank itself; copy the tensor");
  if (tag < 0 || tag >= 1 << 30) fail<CommunicationError>("weft: ", what(call), ": tag ", tag, "; write 0 to 2^30 - 1");
}

WEFT_INLINE std::vector<int64_t> Communicator::counts(char const* which, at::Tensor const& tensor,
                                                      std::vector<int64_t> const& rows, at::Tensor const& flat) const {
  int64_t sum = 0;
  for (auto const count : rows) sum += count;
  if (static_cast<int>(rows.size()) != size() || tensor.dim() == 0 || sum != tensor.size(0) ||
      std::any_of(rows.begin(), rows.end(), [](int64_t count) { return count < 0; }))
    fail<CommunicationError>("weft: ", what("all_to_all_into"), ": parts of ", at::IntArrayRef(rows),
                             " rows do not make the ", which, "'s ", tensor.sizes(), "; give ", size(),
                             " sizes that add up to its first");
  std::vector<int64_t> result;
  for (auto const count : rows) result.push_back(tensor.size(0) == 0 ? 0 : count * (flat.numel() / tensor.size(0)));
  return result;
}

WEFT_INLINE void Communicator::check_pair(char const* call, at::Tensor const& output, at::Tensor const& input,
                                          int64_t expected, bool gathers) const {
  auto const& whole = gathers ? output : input;
  if (whole.numel() != expected)
    fail<CommunicationError>("weft: ", what(call), ": the whole has ", whole.numel(), " elements, expected ", expected,
                             " (", size(), " ranks times ", expected / size(), ")");
  if (output.scalar_type() != input.scalar_type())
    fail<CommunicationError>("weft: ", what(call), ": output is ", output.scalar_type(), ", input is ",
                             input.scalar_type(), "; write one dtype");
  if (!output.is_contiguous() || !input.is_contiguous())
    fail<CommunicationError>("weft: ", what(call), ": output and input must be contiguous; pass .contiguous() buffers");
}

}  // namespace weft::comm
