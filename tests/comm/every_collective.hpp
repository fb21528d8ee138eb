// every_collective.hpp -- what a backend has to be able to do.
// In: a group of ranks on any device. Out: nothing, or an exception that says which value was wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>

#include <weft/comm/communicator.hpp>

#include "../expect.hpp"

namespace test {

/// Every collective against its closed value; rank r holds r + 1.
inline void run_every_collective(weft::comm::Communicator& ranks) {
  using weft::ReduceOp;
  int const rank = ranks.rank(), size = ranks.size();
  auto const options = [&](at::ScalarType type) { return at::TensorOptions(type).device(ranks.device()); };
  auto const full = [&](at::IntArrayRef sizes, double value, at::ScalarType type = at::kFloat) {
    return at::full(sizes, value, options(type));
  };
  auto const empty = [&](at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
    return at::empty(sizes, options(type));
  };
  auto const arange = [&](double begin, double end, at::ScalarType type = at::kFloat) {
    return at::arange(begin, end, options(type));
  };
  double const own = rank + 1, sum = size * (size + 1) / 2.0;
  for (auto const type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kChar, at::kByte}) {
    auto const filled = [&](double value, at::IntArrayRef sizes) { return full(sizes, value, type); };
    auto const reduced = [&](ReduceOp op) {
      auto value = filled(own, {3, 5});
      ranks.all_reduce(value, op);
      return value;
    };
    double product = 1;
    for (int other = 0; other < size; ++other) product *= other + 1;
    expect(reduced(ReduceOp::sum).eq(sum).all().item<bool>(), "a sum");
    expect(reduced(ReduceOp::min).eq(1).all().item<bool>(), "a minimum");
    expect(reduced(ReduceOp::max).eq(size).all().item<bool>(), "a maximum");
    expect(reduced(ReduceOp::product).eq(product).all().item<bool>(), "a product");
    if (at::isFloatingType(type))
      expect(at::allclose(reduced(ReduceOp::average), filled(sum / size, {3, 5}), 1e-2), "an average");

    auto whole = filled(0, {size * 2});
    ranks.all_gather_into(whole, filled(own, {2}));
    expect(whole.equal(arange(1, size + 1, type).repeat_interleave(2)), "all_gather");
    auto part = filled(0, {2});
    ranks.reduce_scatter_into(part, arange(0, size, type).repeat_interleave(2).add_(rank + 1));
    expect(part.eq(sum + size * rank).all().item<bool>(), "reduce_scatter");
  }
  for (int root = 0; root < size; ++root) {
    auto value = full({4}, own);
    ranks.broadcast(value, root);
    expect(value.eq(root + 1).all().item<bool>(), "broadcast");
    auto const gathered = ranks.gather(full({2}, own), root);
    expect(static_cast<int>(gathered.size()) == (rank == root ? size : 0), "gather: the destination alone receives");
    for (std::size_t other = 0; other < gathered.size(); ++other)
      expect(gathered[other].eq(other + 1.0).all().item<bool>(), "gather");
    std::vector<at::Tensor> parts;
    for (int other = 0; rank == root && other < size; ++other) parts.push_back(full({3}, 10.0 * root + other));
    auto scattered = empty({3});
    ranks.scatter_into(scattered, parts, root);
    expect(scattered.eq(10.0 * root + rank).all().item<bool>(), "scatter");
  }
  auto const flags = torch::tensor({rank == 0, true}).to(ranks.device());  // Bool, which NCCL has no name for
  auto any = flags.clone(), moved = empty({2 * size}, at::kBool);
  ranks.all_reduce(any, ReduceOp::min);
  expect(any.equal(torch::tensor({size == 1, true}).to(ranks.device())), "a logical and");
  ranks.all_gather_into(moved, flags);
  expect(moved.sum().item<int64_t>() == size + 1, "bytes of any dtype are gathered");

  auto const sent = arange(0.0, size * 2.0) + 100 * rank;
  auto received = at::empty_like(sent);
  ranks.all_to_all_into(received, sent);
  expect(received.equal((arange(0.0, 2.0) + 2 * rank).repeat({size}) +
                        100 * arange(0.0, static_cast<double>(size)).repeat_interleave(2)),
         "all_to_all");
  // Rank r sends q rows to rank q: nothing to rank 0.
  std::vector<int64_t> to, from;
  for (int other = 0; other < size; ++other) to.push_back(other), from.push_back(rank);
  auto uneven = empty({size * rank, 3});
  ranks.all_to_all_into(uneven, full({size * (size - 1) / 2, 3}, own), from, to);
  expect(uneven.equal(arange(1.0, size + 1.0).repeat_interleave(rank).unsqueeze(1).expand({size * rank, 3})),
         "an uneven all_to_all");
  auto const lists = ranks.all_gather_uneven(full({rank, 2}, own));
  for (int other = 0; other < size; ++other)
    expect(lists[static_cast<std::size_t>(other)].equal(full({other, 2}, other + 1.0)), "an uneven gather");

  if (size > 1) {  // two messages to the next rank; NCCL sends when the other receives, so rank 0 receives first
    auto first = empty({2}), second = empty({5}, at::kLong);
    auto const before = (rank + size - 1) % size, after = (rank + 1) % size;
    auto const send = [&] {
      ranks.send(full({2}, own), after);
      ranks.send(full({5}, rank, at::kLong), after);
    };
    if (rank > 0) send();
    ranks.receive_into(first, before);
    ranks.receive_into(second, before);
    if (rank == 0) send();
    expect(first.eq(before + 1).all().item<bool>() && second.eq(before).all().item<bool>(), "messages arrive in order");
  }
  std::vector<at::Tensor> values;
  std::vector<weft::comm::Pending> under_way;
  for (int i = 0; i < 5; ++i) under_way.push_back(ranks.all_reduce_async(values.emplace_back(full({100}, own + i))));
  for (auto& call : under_way) call.wait();
  for (int i = 0; i < 5; ++i)
    expect(values[static_cast<std::size_t>(i)].eq(sum + i * size).all().item<bool>(), "several at once");
  ranks.barrier();
}

}  // namespace test
