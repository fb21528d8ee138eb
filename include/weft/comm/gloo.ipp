// comm/gloo.ipp -- definitions of comm/gloo.hpp.
#pragma once

#include <weft/comm/gloo.hpp>

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE c10::intrusive_ptr<c10d::Work> GlooBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                               std::vector<at::Tensor>& inputs,
                                                               c10d::GatherOptions const& options) {
  bool const sends = inputs.size() == 1 && inputs[0].is_cpu() && inputs[0].layout() == at::kStrided &&
                     inputs[0].numel() > 0;
  if (sends && options.rootRank >= 0 && options.rootRank < getSize())
    return exchange_to(static_cast<std::size_t>(options.rootRank), outputs, inputs[0]);
  return ProcessGroupGloo::gather(outputs, inputs, options);
}

WEFT_INLINE auto GlooBackend::combine_of(c10d::ReduceOp const& op) -> Combine {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
        return at::add_out(out, a, b);
      };
    case c10d::ReduceOp::PRODUCT:
      return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
        return at::mul_out(out, a, b);
      };
    case c10d::ReduceOp::MIN:
      return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
        return at::minimum_out(out, a, b);
      };
    case c10d::ReduceOp::MAX:
      return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
        return at::maximum_out(out, a, b);
      };
    default:
      return nullptr;
  }
}

WEFT_INLINE bool GlooBackend::exchanges(at::Tensor const& whole, at::Tensor const& part) const {
  return whole.is_cpu() && part.is_cpu() && whole.layout() == at::kStrided && part.layout() == at::kStrided &&
         whole.scalar_type() == part.scalar_type() && whole.is_contiguous() && part.is_contiguous() &&
         whole.numel() == part.numel() * getSize();
}

WEFT_INLINE c10::intrusive_ptr<c10d::Work> GlooBackend::exchange_and_reduce(at::Tensor const& output,
                                                                            at::Tensor const& input,
                                                                            c10d::ReduceOp const& op) {
  auto const rank = static_cast<std::size_t>(getRank()), size = static_cast<std::size_t>(getSize());
  at::NoGradGuard const no_grad;
  auto const result = output.detach().view({-1});
  auto const count = result.numel();
  auto chunks = input.detach().view({getSize(), count}).unbind(0);  // who gets what
  bool const overlap = at::get_overlap_status(result, input) != at::MemOverlapStatus::No;
  if (overlap &&
      result.const_data_ptr() != chunks[rank].const_data_ptr())  // it would be written while others' chunks are sent
    chunks = input.detach().clone().view({getSize(), count}).unbind(0);
  // Where each rank's part of the sum is read: this rank's in the input, the last received one in the output where
  // that is free.
  auto parts = std::vector<at::Tensor>(size);
  parts[rank] = chunks[rank];
  if (size > 1 && !overlap) parts[rank == size - 1 ? size - 2 : size - 1] = result;
  for (auto& part : parts)
    if (!part.defined()) part = at::empty_like(chunks[rank]);
  // Long chunks travel in pieces, so that one is added up, in cache, while the next arrives.
  auto const piece = std::max<std::int64_t>(1, piece_bytes / static_cast<std::int64_t>(result.element_size()));
  auto const num_pieces = static_cast<std::size_t>((count + piece - 1) / piece);
  auto const piece_of = [=](at::Tensor const& chunk, std::size_t index) {
    auto const begin = static_cast<std::int64_t>(index) * piece;
    return num_pieces == 1 ? chunk : chunk.narrow(0, begin, std::min(piece, count - begin));
  };

  auto exchange = c10::make_intrusive<Exchange>(
      getRank(), c10d::OpType::_REDUCE_SCATTER_BASE, num_pieces * size, background_,
      // Writes to received parts and, last, to the output, which may be this rank's chunk of the input.
      [=, sum = at::Tensor(), combine = combine_of(op)](std::size_t step) mutable {
        at::NoGradGuard const no_grad;
        auto const index = step / size, from = step % size;
        auto const next = piece_of(parts[from], index);
        if (from == 0) {
          sum = next;
          if (size == 1) piece_of(result, index).copy_(sum);
          return;
        }
        auto target = from == size - 1 ? piece_of(result, index) : from == 1 && rank == 0 ? next : sum;
        combine(target, sum, next);
        sum = target;
      });
  for (std::size_t index = 0; index < num_pieces; ++index)
    post(
        *exchange, index * size, [&](std::size_t from) { return piece_of(parts[from], index); },
        [&](std::size_t to) { return piece_of(chunks[to], index); });
  return exchange;
}

WEFT_INLINE c10::intrusive_ptr<c10d::Work> GlooBackend::exchange_all(at::Tensor const& output,
                                                                     at::Tensor const& input) {
  auto const rank = static_cast<std::size_t>(getRank());
  at::NoGradGuard const no_grad;
  auto part = input.detach().view({-1});
  auto const slots = output.detach().view({getSize(), part.numel()}).unbind(0);
  if (part.const_data_ptr() != slots[rank].const_data_ptr() &&
      at::get_overlap_status(part, output) != at::MemOverlapStatus::No)
    part = part.clone();  // another rank's slot would be filled while it is sent
  auto exchange = c10::make_intrusive<Exchange>(getRank(), c10d::OpType::_ALLGATHER_BASE, slots.size(), background_,
                                                [=, own = slots[rank]](std::size_t from) {
                                                  if (from == rank && own.const_data_ptr() != part.const_data_ptr())
                                                    own.copy_(part);
                                                });
  if (part.numel() > 0)
    post(*exchange, 0, [&](std::size_t from) { return slots[from]; }, [&](std::size_t) { return part; });
  return exchange;
}

WEFT_INLINE c10::intrusive_ptr<c10d::Work> GlooBackend::exchange_to(std::size_t root,
                                                                    std::vector<std::vector<at::Tensor>> const& outputs,
                                                                    at::Tensor const& input) {
  auto const rank = static_cast<std::size_t>(getRank()), size = static_cast<std::size_t>(getSize());
  at::NoGradGuard const no_grad;
  auto const part = input.detach().contiguous();
  std::vector<at::Tensor> slots;
  if (rank == root) {
    TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == size, "gather: the root passes one list of ", size,
                " outputs");
    for (auto const& output : outputs[0]) {
      TORCH_CHECK(output.sizes() == input.sizes() && output.scalar_type() == input.scalar_type() &&
                      output.is_contiguous() && output.is_cpu(),
                  "gather: an output is ", output.sizes(), " of ", output.scalar_type(), ", the input ", input.sizes(),
                  " of ", input.scalar_type(), "; outputs are contiguous, and like the input");
      slots.push_back(output.detach());
    }
  } else {
    TORCH_CHECK(outputs.empty(), "gather: outputs are the root's alone");
  }
  int const tag = next_tag();
  auto exchange = c10::make_intrusive<Exchange>(getRank(), c10d::OpType::GATHER, slots.size(), background_,
                                                [=, own = rank == root ? slots[rank] : at::Tensor()](std::size_t from) {
                                                  if (from == rank && !own.is_same(part)) own.copy_(part);
                                                });
  for (std::size_t from = 0; from < slots.size(); ++from) {
    std::vector<at::Tensor> list{slots[from]};
    if (from != rank) exchange->receive(from, recv(list, static_cast<int>(from), tag));
  }
  std::vector<at::Tensor> list{part};
  if (rank != root) exchange->send(send(list, static_cast<int>(root), tag));
  return exchange;
}

}  // namespace weft::comm
