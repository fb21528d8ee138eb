// weft.hpp -- everything that a training program needs.
// In: nothing. Out: Fabric, all policies and the mechanisms that are built. Layers that are units are in
// weft/nn/layers.hpp and weft/nn/transformer.hpp: a program that builds its blocks of torch::nn's own does not pay for
// them.
#pragma once

#include <weft/data/text.hpp>
#include <weft/data_parallel/ddp.hpp>
#include <weft/fabric.hpp>
#include <weft/optim/adam.hpp>
#include <weft/optim/lambda_lr.hpp>
#include <weft/optim/sgd.hpp>
#include <weft/shard/fsdp.hpp>
#include <weft/strategy/with_launcher.hpp>
#include <weft/strategy/with_strategy.hpp>
#include <weft/unit/unit.hpp>
#include <weft/version.hpp>
