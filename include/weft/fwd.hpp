// fwd.hpp -- what weft assumes when nothing is said.
// In: nothing. Out: every policy's name and every default; a definition elsewhere repeats none of them.
#pragma once

#include <cstddef>

#include <weft/core/fixed_string.hpp>

namespace weft::inline v0 {

template <class... Policies>
class Fabric;

// Numbers behind the policies. Bytes are written 25_MiB once weft::literals is in use (strategy/schedule.hpp).
namespace defaults {
inline constexpr std::size_t ddp_bucket_bytes = 25 * 1024 * 1024;
inline constexpr std::size_t ddp_first_bucket_bytes = 1024 * 1024;
inline constexpr std::size_t shard_bucket_bytes = 1024 * 1024;
inline constexpr std::size_t prefetch_units = 1;
inline constexpr std::size_t rate_limit_units = 2;
inline constexpr int power_sgd_rank = 1;
inline constexpr int power_sgd_start_iter = 1000;
}  // namespace defaults

// Strategies
struct SingleDevice;
struct DataParallel;
template <class... Options>
struct DDP;
template <class... Options>
struct FSDP;
template <int Stage, class... Options>
struct ZeRO;
template <core::FixedString Config = "">
struct DeepSpeed;
template <class... Options>
struct ModelParallel;
template <class... Options>
struct Pipeline;
template <class Inner = SingleDevice>
struct Lazy;
template <class... Strategies>
struct Auto;

// Sharding and wrapping
struct FullShard;
struct ShardGradOp;
struct NoShard;
struct HybridShard;
struct HybridShardGradOp;
template <class... Blocks>
struct WrapPolicy;
template <std::size_t MinParams>
struct SizeBased;
template <auto Function>
struct WrapIf;
template <class... Blocks>
struct Ignore;
template <auto Function>
struct IgnoreIf;

// Memory
template <class... Blocks>
struct ActivationCheckpointing;
template <class... Blocks>
struct OffloadActivations;
struct OffloadParams;
struct OffloadOptimizer;
template <core::FixedString Directory>
struct Nvme;

// Schedule
template <std::size_t Units>
struct Prefetch;
template <std::size_t Units>
struct RateLimit;
struct AccumulateSharded;
template <std::size_t Bytes, std::size_t FirstBytes = Bytes>
struct Bucket;
template <class Hook>
struct CommHook;
struct FindUnused;
struct StaticGraph;
template <bool On = true>
struct BroadcastBuffers;
template <bool On = true>
struct GradientsInBuckets;
struct AllReduce;
struct Bf16Compress;
struct Fp16Compress;
template <int Rank = defaults::power_sgd_rank, int StartIter = defaults::power_sgd_start_iter>
struct PowerSGD;

// Precision
struct Fp32;
struct Fp64;
struct Bf16;
struct Fp16;
struct Bf16Mixed;
struct Fp16Mixed;
template <class Param, class Reduce = Fp32, class Buffer = Fp32, class Output = Fp32>
struct MixedPrecision;

// Device, backend, launcher
struct Cpu;
struct Cuda;
template <class Device>
struct On;
struct AnyDevice;
struct Gloo;
struct Nccl;
struct NcclDirect;
struct ByDevice;
template <std::size_t BytesPerSecond, std::size_t LatencyNs>
struct Link;
using IdealLink = Link<0, 0>;
template <std::size_t World, class LinkModel = IdealLink>
struct Simulated;
struct Fork;
struct Popen;
struct Environment;

// Mesh and plan
template <class... Axes>
struct Mesh;
using NoMesh = Mesh<>;
template <class Block, class... Rules>
struct Plan;
template <auto Function>
struct Parallelize;

// What a category stands for when no policy of it is given.
using DefaultStrategy = SingleDevice;
using DefaultPrecision = Fp32;
using DefaultDevice = AnyDevice;
using DefaultBackend = ByDevice;
using DefaultLauncher = Fork;
using DefaultMesh = NoMesh;
using DefaultSharding = FullShard;
using DefaultHook = AllReduce;
using DefaultInner = DDP<>;  // what ModelParallel does on the axes that its plan leaves alone

}  // namespace weft
