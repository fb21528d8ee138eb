// strategy/schedule.hpp -- when communication happens, and in what pieces.
// In: counts, bytes, hooks. Out: the options of DDP and of the sharding strategies, and byte literals for them.
#pragma once

#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

inline namespace literals {
constexpr std::size_t operator""_KiB(unsigned long long count) { return std::size_t{count} << 10; }
constexpr std::size_t operator""_MiB(unsigned long long count) { return std::size_t{count} << 20; }
constexpr std::size_t operator""_GiB(unsigned long long count) { return std::size_t{count} << 30; }
}  // namespace literals

// Units gathered ahead of the one that computes.
template <std::size_t Units>
struct Prefetch {
  using category = weft::category::prefetch;
  static constexpr std::string_view name = "Prefetch";
  static constexpr std::size_t value = Units;
};

// Units whole at the same time, gathered or in flight; in backward also as many, but two at least, with whole
// gradients.
template <std::size_t Units>
struct RateLimit {
  using category = weft::category::rate_limit;
  static constexpr std::string_view name = "RateLimit";
  static constexpr std::size_t value = Units;
};

// Without synchronization (no_backward_sync) gradients are reduced into shards all the same: more traffic, but no whole
// gradients between micro-batches.
struct AccumulateSharded {
  using category = weft::category::accumulation;
  static constexpr std::string_view name = "AccumulateSharded";
};

// Bytes that travel together. The first bucket of DDP may be smaller, so that reduction starts earlier in backward.
template <std::size_t Bytes, std::size_t FirstBytes>
struct Bucket {
  using category = weft::category::bucket;
  static constexpr std::string_view name = "Bucket";
  static constexpr std::size_t value = Bytes;
  static constexpr std::size_t first = FirstBytes;
};

// How gradients are averaged: one of the tags below, or a class of one's own; data_parallel/hooks.hpp says what it has.
// One that says `sent_bytes` (of an element that is so wide) and `sends_copies` is known to estimate<...>.
template <class Hook>
struct CommHook {
  using category = weft::category::comm_hook;
  using hook = Hook;
  static constexpr std::string_view name = "CommHook";
};

struct AllReduce {
  static constexpr std::string_view name = "AllReduce";
  static constexpr std::size_t sent_bytes(std::size_t element_bytes) { return element_bytes; }
  static constexpr bool sends_copies = false;
};
struct Bf16Compress {
  static constexpr std::string_view name = "Bf16Compress";
  static constexpr std::size_t sent_bytes(std::size_t) { return 2; }
  static constexpr bool sends_copies = true;
};
struct Fp16Compress {
  static constexpr std::string_view name = "Fp16Compress";
  static constexpr std::size_t sent_bytes(std::size_t) { return 2; }
  static constexpr bool sends_copies = true;
};
// Low-rank approximation of each matrix; plain averaging before StartIter.
template <int Rank, int StartIter>
struct PowerSGD {
  static constexpr std::string_view name = "PowerSGD";
  static constexpr int rank = Rank;
  static constexpr int start_iter = StartIter;
};

// Parameters that a step does not reach count as reduced with zeros; the graph is searched for them after each forward.
struct FindUnused {
  using category = weft::category::find_unused;
  static constexpr std::string_view name = "FindUnused";
};

// Every step uses the same parameters the same number of times; learned in the first one.
struct StaticGraph {
  using category = weft::category::static_graph;
  static constexpr std::string_view name = "StaticGraph";
};

// Buffers of rank 0 are everyone's at the start of forward.
template <bool On>
struct BroadcastBuffers {
  using category = weft::category::broadcast_buffers;
  static constexpr std::string_view name = "BroadcastBuffers";
  static constexpr bool value = On;
};

// Gradients are views of the buckets that are reduced: one copy less in time and memory.
template <bool On>
struct GradientsInBuckets {
  using category = weft::category::gradients_in_buckets;
  static constexpr std::string_view name = "GradientsInBuckets";
  static constexpr bool value = On;
};

}  // namespace weft
