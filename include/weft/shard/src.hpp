// shard/src.hpp -- what the room shard has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/shard/bucket.ipp>
#include <weft/shard/buffer_pool.ipp>
#include <weft/shard/dtypes.ipp>
#include <weft/shard/flat_parameters.ipp>
#include <weft/shard/fsdp.ipp>
#include <weft/shard/gradients.ipp>
#include <weft/shard/group.ipp>
#include <weft/shard/rank_agreement.ipp>
#include <weft/shard/sharding_engine.ipp>
#include <weft/shard/unsharded.ipp>
#include <weft/shard/wrap.ipp>
