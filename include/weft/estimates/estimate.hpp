// estimates/estimate.hpp -- what a strategy costs, before anything runs.
// In: a model's sizes, the policies of a Fabric, a number of ranks. Out: bytes that a rank holds and sends, collectives
// of a step; no torch.
//
//   constexpr weft::ModelShape model() { return {.units = {{.parameters = {{4096 * 512}}}, {.parent = 0, .parameters =
//   {{512 * 512}}}}}; } static_assert(weft::estimate<weft::FSDP<weft::FullShard, weft::WrapPolicy<Block>>>(model(),
//   8).peak_bytes < 40_GiB);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <weft/comm/trace.hpp>
#include <weft/core/error.hpp>
#include <weft/plan/grid.hpp>
#include <weft/shard/buckets.hpp>
#include <weft/shard/layout.hpp>
#include <weft/strategy/composition.hpp>

namespace weft::inline v0 {

struct ParameterShape {
  int64_t numel = 0;
  bool trainable = true;
  bool has_statistics = false;  // of a batch norm, say: a precision that keeps its statistics keeps it, too, as it is
  bool operator==(ParameterShape const&) const = default;
};

/// A unit's own parameters, without those of units inside it, and the unit around it (-1: the root alone).
struct UnitShape {
  int parent = -1;
  std::vector<ParameterShape> parameters{};
  std::size_t before_inner =
      0;  // so many of the first are used before the units inside: their gradients arrive after those units'
  bool operator==(UnitShape const&) const = default;
};

struct ModelShape {
  std::size_t element_bytes = 4;  // before setup; a precision such as Bf16 has its own
  std::vector<UnitShape>
      units{};  // in the order in which the model registers them: the root, then each before those inside it
  std::size_t optimizer_states = 0;  // tensors for each parameter, as large as it: SGD 0, with momentum 1, Adam 2
  bool operator==(ModelShape const&) const = default;
};

/// Bytes on the fullest rank, in device memory or wherever an offload option puts them, and the collectives of one step
/// with one backward. Left out: activations, buffers, one gradient on its way from autograd, counters of optimizers.
struct Estimate {
  std::size_t parameter_bytes = 0;      // between steps
  std::size_t gradient_bytes = 0;       // between backward and the optimizer
  std::size_t optimizer_bytes = 0;      // from the first step on
  std::size_t gathered_peak_bytes = 0;  // parameters made whole to compute with, at most at once
  std::size_t reduce_peak_bytes =
      0;  // whole gradients on their way to gradient_bytes and what a backend receives, at most at once
  std::size_t peak_bytes = 0;          // no more than this: as if all of the above met
  std::size_t largest_unit_bytes = 0;  // the parameters of one unit

  comm::Sum all_gather;
  comm::Sum reduce_scatter;
  comm::Sum all_reduce;
  double sent_bytes = 0;  // by this rank, in rings
  bool operator==(Estimate const&) const = default;
};

namespace estimates {

/// Every parameter lies on `shard` ranks, and those are repeated `replicate` times.
struct Spread {
  int replicate = 1;
  int shard = 1;
};

/// Bytes of an element.
struct Widths {
  std::size_t kept = 4;
  std::size_t computed = 4;  // gathered, and as gradients arrive
  std::size_t reduced = 4;   // of gradients while they are added up over ranks
  bool casts = false;        // what computes is no part of what is kept
  bool apart = false;        // what is added up is not what is handed out
  bool operator==(Widths const&) const = default;
};

constexpr std::size_t bytes_of(Number number) { return number == Number::fp64 ? 8 : number == Number::fp32 ? 4 : 2; }

/// As [Note: layers that keep statistics] in precision/rules.hpp and [Note: what a precision casts] in shard/dtypes.hpp
/// have it, of a model whose numbers are element_bytes wide before setup.
constexpr Widths widths_of(std::size_t element_bytes, bool has_statistics, PrecisionConfig const& config) {
  bool const stays = has_statistics && config.stored != config.buffers;
  bool const converts = config.stored != Number::fp32 && !stays, casts = config.computed != config.stored;
  Widths bytes{.kept = converts ? bytes_of(config.stored) : element_bytes};
  bytes.casts = casts && !has_statistics && (converts || bytes.kept != bytes_of(config.computed));
  bytes.computed = bytes.casts ? bytes_of(config.computed) : bytes.kept;
  bool const is_told = casts || converts || bytes.kept == bytes_of(config.stored);
  bytes.reduced = is_told ? bytes_of(config.reduced) : bytes.kept;
  bytes.apart = converts ? config.reduced != config.stored : bytes.reduced != bytes.kept;
  return bytes;
}

/// Parameters of a bucket that travel together.
struct GroupSizes {
  shard::Layout layout;
  Widths bytes;
  bool trained = true;
  std::size_t first_arrived = 0;  // elements whose gradients arrive before those of units inside

  constexpr std::size_t part() const { return static_cast<std::size_t>(layout.chunk()); }
  constexpr std::size_t whole() const { return static_cast<std::size_t>(layout.padded()); }
};

/// What a bucket of units makes of its parameters: those that are trained and those that are not travel apart.
struct BucketSizes {
  std::vector<GroupSizes> groups;
  std::size_t around = 0;  // the bucket of the unit around; the root's is its own

  /// Bytes that are there while it is unsharded, and not else.
  constexpr std::size_t gathered() const {
    std::size_t bytes = 0;
    for (auto const& group : groups)
      if (group.layout.num_ranks() > 1 || group.bytes.casts) bytes += group.whole() * group.bytes.computed;
    return bytes;
  }
};

constexpr std::size_t kept_bytes(UnitShape const& unit, std::size_t element_bytes, PrecisionConfig const& precision) {
  std::size_t bytes = 0;
  for (auto const& parameter : unit.parameters)
    bytes += static_cast<std::size_t>(parameter.numel) *
             widths_of(element_bytes, parameter.has_statistics, precision).kept;
  return bytes;
}

constexpr void check(ModelShape const& shape, int num_ranks) {
  if (num_ranks < 1)
    fail<ConfigurationError>("weft: estimate on ", num_ranks,
                             " ranks: say how many there are, as in estimate<FSDP<...>>(shape, 8)");
  for (std::size_t i = 0; i < shape.units.size(); ++i)
    if (int const parent = shape.units[i].parent; i == 0 ? parent != -1 : parent < 0 || parent >= static_cast<int>(i))
      fail<ConfigurationError>("weft: estimate: unit ", i, " has the parent ", parent,
                               ": unit 0 is the root with parent -1, and every other one comes after its parent");
}

constexpr std::vector<BucketSizes> buckets_of(ModelShape const& shape, std::size_t bucket_bytes, int num_ranks,
                                              PrecisionConfig const& precision) {
  std::vector<shard::UnitSize> sizes;
  for (auto const& unit : shape.units) sizes.push_back({kept_bytes(unit, shape.element_bytes, precision), unit.parent});
  bool const differ = widths_of(shape.element_bytes, true, precision) !=
                      widths_of(shape.element_bytes, false, precision);
  auto const bucket_of = buckets(sizes, bucket_bytes);
  std::vector<BucketSizes> result;
  for (std::size_t i = 0; i < shape.units.size();) {
    auto const parent = shape.units[i].parent;
    auto const bucket = bucket_of[i];
    struct Found {
      std::vector<int64_t> numels{};
      std::size_t first_arrived = 0;
    };
    std::vector<Found> found(4);  // trained or not, with statistics or without
    auto const of = [&](bool trained, bool has_statistics) -> Found& { return found[trained * 2u + has_statistics]; };
    for (; i < shape.units.size() && bucket_of[i] == bucket; ++i)
      for (std::size_t p = 0; p < shape.units[i].parameters.size(); ++p) {
        auto const& parameter = shape.units[i].parameters[p];
        auto& group = of(parameter.trainable, differ && parameter.has_statistics);
        group.numels.push_back(parameter.numel);
        if (parameter.trainable && p >= shape.units[i].before_inner)
          group.first_arrived += static_cast<std::size_t>(parameter.numel);
      }
    auto& made = result.emplace_back(
        BucketSizes{.groups = {}, .around = parent < 0 ? 0 : bucket_of[static_cast<std::size_t>(parent)]});
    for (bool const trained : {true, false})
      for (bool const has_statistics : {false, true})
        if (auto& group = of(trained, has_statistics); !group.numels.empty())
          made.groups.push_back({shard::Layout(std::move(group.numels), num_ranks),
                                 widths_of(shape.element_bytes, has_statistics, precision), trained,
                                 group.first_arrived});
  }
  return result;
}

/// Whether bucket `outer` is `inner`, or around it. The root is around all.
constexpr bool is_around(std::vector<BucketSizes> const& buckets, std::size_t outer, std::size_t inner) {
  while (inner != outer && inner != 0) inner = buckets[inner].around;
  return inner == outer;
}

/// Buckets in the order in which backward enters them: units around others before those, later ones before earlier
/// ones.
constexpr std::vector<std::size_t> backward_order(std::vector<BucketSizes> const& buckets) {
  std::vector<std::size_t> order, around;
  std::vector<char> is_in(buckets.size(), false);  // clang 14 evaluates no vector<bool>
  for (std::size_t i = buckets.size(); i-- > 0;) {
    for (auto at = i; !is_in[at]; at = buckets[at].around) {
      around.push_back(at);
      is_in[at] = true;
    }
    for (; !around.empty(); around.pop_back()) order.push_back(around.back());
  }
  return order;
}

/// The most bytes that are whole at once while buckets are entered in this order: the one that computes, those around
/// it, and the next ones, as many as may be gathered ahead.
constexpr std::size_t widest(std::vector<BucketSizes> const& buckets, std::vector<std::size_t> const& order,
                             FsdpConfig const& config) {
  std::size_t widest = 0;
  for (std::size_t first = 0; first < order.size(); ++first) {
    std::size_t bytes = buckets[0].gathered(), num_unsharded = 0;
    for (auto at = order[first]; at != 0; at = buckets[at].around, ++num_unsharded) bytes += buckets[at].gathered();
    auto const ahead = std::min(config.prefetch, config.rate_limit - std::min(config.rate_limit, num_unsharded));
    for (std::size_t next = first + 1; next < order.size() && next <= first + ahead; ++next)
      bytes += buckets[order[next]].gathered();
    widest = std::max(widest, bytes);
  }
  return widest;
}

constexpr std::size_t gathered_peak(std::vector<BucketSizes> const& buckets, FsdpConfig const& config) {
  if (!config.sharding.reshard_after_forward) {
    std::size_t sum = 0;
    for (auto const& bucket : buckets) sum += bucket.gathered();
    return sum;
  }
  std::vector<std::size_t> forward_order;
  for (std::size_t i = 0; i < buckets.size(); ++i) forward_order.push_back(i);
  return std::max(widest(buckets, forward_order, config), widest(buckets, backward_order(buckets), config));
}

/// Whole gradients in a backward pass, in bytes. Each has its own memory when it arrives; those of one group are copied
/// into one piece when all are there, or, of a unit around others, when the first arrives from before those. Parameters
/// that are not cut have theirs copied at once, into what is handed out if that is in the same numbers. Reductions have
/// buffers of their own. The engine's rules: shard/sharding_engine.hpp, gradient_arrived().
class Reductions {
 public:
  constexpr Reductions(std::vector<BucketSizes> const& buckets, FsdpConfig const& config, bool replicates,
                       bool exchanges)
      : buckets_(buckets),
        limit_(std::max<std::size_t>(2, config.rate_limit)),
        replicates_(replicates),
        exchanges_(exchanges) {}

  constexpr std::size_t peak() {
    std::vector<std::size_t> open;
    for (auto const bucket : backward_order(buckets_)) {
      for (; !open.empty() && !is_around(buckets_, open.back(), bucket); open.pop_back()) start(open.back());
      open.push_back(bucket);
      for (auto const& group : buckets_[bucket].groups) hold(arrived(group));
    }
    for (; !open.empty(); open.pop_back()) start(open.back());
    return peak_;
  }

 private:
  struct UnderWay {
    std::size_t bucket;
    bool whole = true;
  };

  constexpr void hold(std::size_t bytes) { peak_ = std::max(peak_, held_ += bytes); }
  static constexpr bool is_cut(GroupSizes const& group) { return group.layout.num_ranks() > 1; }
  /// In one piece.
  static constexpr std::size_t whole(GroupSizes const& group) {
    return group.trained && (is_cut(group) || group.bytes.apart) ? group.whole() * group.bytes.reduced : 0;
  }
  /// What is there of a unit around others while those are in backward.
  static constexpr std::size_t arrived(GroupSizes const& group) {
    return is_cut(group) ? group.first_arrived * group.bytes.computed : group.first_arrived > 0 ? whole(group) : 0;
  }
  constexpr std::size_t buffers(GroupSizes const& group) const {
    return exchanges_ && group.trained ? group.part() * group.bytes.reduced *
                                             static_cast<std::size_t>(std::max(0, group.layout.num_ranks() - 2))
                                       : 0;
  }
  /// What was added up, until it is handed out in other numbers.
  static constexpr std::size_t sum(GroupSizes const& group) {
    return group.trained && is_cut(group) && group.bytes.apart ? group.part() * group.bytes.reduced : 0;
  }

  constexpr void start(std::size_t bucket) {
    auto const& groups = buckets_[bucket].groups;
    if (std::none_of(groups.begin(), groups.end(), [](auto const& group) { return group.trained; })) return;
    if (replicates_ && !under_way_.empty())
      drop_unsharded(under_way_.back());  // averaged over the replicas now, in parts
    while (under_way_.size() > (replicates_ ? limit_ - 1 : limit_ - 2)) finish();
    for (auto const& group : groups) {
      if (is_cut(group)) {
        hold(whole(group));
        held_ -= arrived(group);
      } else {
        hold(whole(group) - arrived(group));
      }
      hold(sum(group) + buffers(group));
    }
    under_way_.push_back({bucket});
  }
  constexpr void drop_unsharded(UnderWay& reduction) {
    if (std::exchange(reduction.whole, false))
      for (auto const& group : buckets_[reduction.bucket].groups) held_ -= whole(group) + buffers(group);
  }
  constexpr void finish() {
    drop_unsharded(under_way_.front());
    for (auto const& group : buckets_[under_way_.front().bucket].groups) held_ -= sum(group);
    under_way_.erase(under_way_.begin());
  }

  std::vector<BucketSizes> const& buckets_;
  std::size_t limit_;
  bool replicates_;
  bool exchanges_;
  std::vector<UnderWay> under_way_{};
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
};

constexpr void add(comm::Sum& sum, comm::Kind kind, int group_size, std::size_t bytes) {
  if (group_size <= 1) return;
  sum.count += 1;
  sum.bytes += bytes;
  sum.ring_bytes += comm::ring_bytes(kind, group_size, bytes);
}

/// Adds up what the rest says.
constexpr Estimate summed(ModelShape const& shape, PrecisionConfig const& precision, Estimate estimate) {
  for (auto const& unit : shape.units)
    estimate.largest_unit_bytes = std::max(estimate.largest_unit_bytes,
                                           kept_bytes(unit, shape.element_bytes, precision));
  estimate.peak_bytes = estimate.parameter_bytes + estimate.gradient_bytes + estimate.optimizer_bytes +
                        estimate.gathered_peak_bytes + estimate.reduce_peak_bytes;
  estimate.sent_bytes = estimate.all_gather.ring_bytes + estimate.reduce_scatter.ring_bytes +
                        estimate.all_reduce.ring_bytes;
  return estimate;
}

/// `exchanges`: reductions are weft's own over Gloo, which receives a chunk from each other rank, one of them in the
/// result.
constexpr Estimate estimate_sharded(ModelShape const& shape, FsdpConfig const& config, Spread spread,
                                    bool exchanges = true, PrecisionConfig const& precision = {}) {
  auto const& sharding = config.sharding;
  // Whoever keeps a part of anything needs that part of the gradients alone; whoever keeps everything is one of many
  // replicas.
  bool const in_parts = sharding.shard_parameters || sharding.shard_gradients || sharding.shard_optimizer;
  if (!in_parts) spread = {.replicate = spread.replicate * spread.shard, .shard = 1};
  auto const buckets = buckets_of(shape, config.bucket_bytes, spread.shard, precision);

  Estimate estimate;
  std::size_t unsharded_gradients = 0;
  bool casts = false;
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket)
    for (auto const& group : buckets[bucket].groups) {
      if (group.layout.total() == 0) continue;
      auto const part = group.part() * group.bytes.kept, whole = group.whole() * group.bytes.computed;
      auto const gather = [&] { add(estimate.all_gather, comm::Kind::all_gather, spread.shard, whole); };
      casts = casts || group.bytes.casts;

      estimate.parameter_bytes += sharding.shard_parameters ? part : group.whole() * group.bytes.kept;
      if (sharding.shard_parameters) {
        gather();
        if (sharding.reshard_after_forward && bucket != 0) gather();  // the root stays whole until backward is over
      }
      if (!group.trained) continue;
      estimate.gradient_bytes += part;
      estimate.optimizer_bytes += part * shape.optimizer_states;
      unsharded_gradients += group.whole() * group.bytes.reduced;
      add(estimate.reduce_scatter, comm::Kind::reduce_scatter, spread.shard, group.whole() * group.bytes.reduced);
      add(estimate.all_reduce, comm::Kind::all_reduce, spread.replicate, group.part() * group.bytes.reduced);
      if (!sharding.shard_parameters) gather();  // what each rank's optimizer has made of its part
    }

  if (sharding.shard_parameters || !in_parts) estimate.gathered_peak_bytes = gathered_peak(buckets, config);
  if (spread.shard > 1 && !sharding.shard_gradients)
    estimate.reduce_peak_bytes = unsharded_gradients;
  else if (spread.shard * spread.replicate > 1 || casts)  // else gradients are autograd's own
    estimate.reduce_peak_bytes =
        Reductions(buckets, config, spread.shard > 1 && spread.replicate > 1, exchanges).peak();
  return summed(shape, precision, estimate);
}

/// A DDP bucket has one dtype, and is full once it holds its bytes or more. How many there are is exact if gradients
/// come unit by unit, the last one first; a root with parameters before and after its units may have one more or fewer.
/// `sent`: bytes of an element, of those in which it is reduced. What is sent in other numbers is a copy of each
/// bucket, and all may be under way at once.
constexpr Estimate estimate_ddp(ModelShape const& shape, DdpConfig const& config, PrecisionConfig const& precision,
                                std::size_t (*sent)(std::size_t), bool compresses, int num_ranks) {
  struct Filling {
    Widths bytes;
    std::size_t limit;
    std::size_t filled = 0, numel = 0;
  };
  auto const first = std::min(config.first_bucket_bytes, config.bucket_bytes);
  Filling most{widths_of(shape.element_bytes, false, precision), first},
      with_statistics{widths_of(shape.element_bytes, true, precision), first};
  bool const differ = most.bytes != with_statistics.bytes;
  Estimate estimate;
  auto const send = [&](Filling& bucket) {
    auto const bytes = bucket.numel * sent(bucket.bytes.reduced);
    add(estimate.all_reduce, comm::Kind::all_reduce, num_ranks, bytes);
    if (compresses || bucket.bytes.apart) estimate.reduce_peak_bytes += bytes;
    bucket.filled = bucket.numel = 0;
    bucket.limit = config.bucket_bytes;
  };
  for (auto i = shape.units.size(); i-- > 0;) {
    auto const& parameters = shape.units[i].parameters;
    for (auto j = parameters.size(); j-- > 0;) {
      auto& bucket = differ && parameters[j].has_statistics ? with_statistics : most;
      auto const numel = static_cast<std::size_t>(parameters[j].numel), bytes = numel * bucket.bytes.kept;
      estimate.parameter_bytes += bytes;
      if (!parameters[j].trainable) continue;
      estimate.gradient_bytes += bytes;
      bucket.filled += bytes;
      bucket.numel += numel;
      if (bucket.filled >= bucket.limit) send(bucket);
    }
  }
  for (auto* const bucket : {&most, &with_statistics})
    if (bucket->filled != 0) send(*bucket);
  estimate.optimizer_bytes = estimate.gradient_bytes * shape.optimizer_states;
  if (!config.gradients_in_buckets) estimate.reduce_peak_bytes += estimate.gradient_bytes;
  return summed(shape, precision, estimate);
}

/// Bytes of an element while DDP sends it; 0: only the hook knows.
template <class Hook>
constexpr std::size_t hook_bytes(std::size_t element_bytes) {
  if constexpr (std::is_same_v<Hook, AllReduce>) return element_bytes;
  if constexpr (std::is_same_v<Hook, Bf16Compress> || std::is_same_v<Hook, Fp16Compress>) return 2;
  return 0;
}

template <class S>
inline constexpr bool has_fsdp_config_v = false;
template <class S>
  requires requires { S::config; }
inline constexpr bool has_fsdp_config_v<S> = std::is_same_v<std::remove_cvref_t<decltype(S::config)>, FsdpConfig>;

// Estimates are of policies as Fabric takes them, or of the Fabric.
template <class... Policies>
struct CompositionOf {
  using type = Composition<Policies...>;
};
template <class... Policies>
struct CompositionOf<Fabric<Policies...>> {
  using type = Composition<Policies...>;
};

template <class C>
struct AssertEstimated {
  using S = typename C::strategy;
  static constexpr bool knows_strategy = std::is_same_v<S, SingleDevice> || is_ddp_v<S> || has_fsdp_config_v<S>;
  static constexpr bool knows_hook = [] {
    if constexpr (is_ddp_v<S>)
      return hook_bytes<typename S::hook>(4) != 0;
    else
      return true;
  }();
  static constexpr bool value = true;

  static_assert(
      knows_strategy,
      "weft: estimate<...> knows SingleDevice, DDP, FSDP and ZeRO, alone or in Fabric<...>: name one of them");
  static_assert(knows_hook,
                "weft: estimate<DDP<CommHook<...>>> knows what AllReduce, Bf16Compress and Fp16Compress send: leave "
                "another hook out");
};

/// How FSDP or ZeRO in these policies spreads over the ranks.
template <class... Policies>
constexpr Spread spread_of(int num_ranks) {
  using C = typename CompositionOf<Policies...>::type;
  if constexpr (C::strategy::config.sharding.replicate) {
    auto const grid = resolve<typename C::mesh>(num_ranks);
    return {.replicate = grid.extent("replicate"), .shard = grid.extent("shard")};
  }
  return {.shard = num_ranks};
}

}  // namespace estimates

/// estimate<FSDP<FullShard, WrapPolicy<Block>>>(shape, 8), also of several policies, or of the program's own
/// Fabric<...>. num_ranks may be left out where the mesh says it, and for SingleDevice.
template <class... Policies>
constexpr Estimate estimate(ModelShape const& shape,
                            int num_ranks = estimates::CompositionOf<Policies...>::type::world) {
  using C = typename estimates::CompositionOf<Policies...>::type;
  using S = typename C::strategy;
  static_assert(C::check());
  static_assert(core::Reported<estimates::AssertEstimated<C>>);
  constexpr PrecisionConfig precision = C::precision::config;
  constexpr PrecisionConfig as_kept{.stored = precision.stored,
                                    .computed = precision.stored,
                                    .reduced = precision.reduced,
                                    .buffers = precision.buffers};
  if constexpr (std::is_same_v<S, SingleDevice>) {  // also what a refused composition counts as
    estimates::check(shape, 1);
    return estimates::estimate_sharded(shape, {.sharding = NoShard::config}, {}, true, as_kept);
  } else if constexpr (is_ddp_v<S>) {
    estimates::check(shape, num_ranks);
    return estimates::estimate_ddp(shape, S::config, as_kept, &estimates::hook_bytes<typename S::hook>,
                                   !std::is_same_v<typename S::hook, AllReduce>, num_ranks);
  } else if constexpr (estimates::has_fsdp_config_v<S>) {
    estimates::check(shape, num_ranks);
    return estimates::estimate_sharded(shape, S::config, estimates::spread_of<Policies...>(num_ranks),
                                       /*exchanges=*/!talks_by_nccl_v<typename C::backend, typename C::device>,
                                       precision);
  } else {
    return {};
  }
}

}  // namespace weft
