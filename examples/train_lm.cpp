// train_lm.cpp -- the main job: a language model, on one device, data parallel or sharded, on real text or on formula
// tokens.
//
//   bash examples/run.sh                                            Shakespeare, FSDP on two processes
//   bash examples/run.sh --text my.txt --strategy single            any file, one process
//   bash examples/run.sh --strategy ddp --world 2 --jsonl           the formula's tokens, as JSON lines that compare
//   with
//                                                                   benchmarks/peers/peer_train.py (its FORMAT.md says
//                                                                   what is what)
//
// run: --strategy ddp --world 2
// expect: step 9  loss 4.35291
// run: --strategy dp --world 3
// expect: step 9  loss 4.35291
// run: --strategy single
// expect: step 9  loss 4.35291
// run: --strategy fsdp --world 2 --activation-checkpointing
// expect: step 9  loss 4.35291
// run: --strategy fsdp-shard-grad-op --world 2 --activation-checkpointing --offload-activations /tmp
// expect: step 9  loss 4.35291
// run: --strategy hsdp --world 4 --replicate 2
// expect: step 9  loss 4.35291
// run: --strategy fsdp --world 2 --defer-init
// expect: step 9  loss 4.35291
// run: --strategy ddp --world 2 --precision bf16-mixed
// expect: step 9  loss 4.35
// run: --strategy fsdp --world 2 --precision bf16-true
// expect: step 9  loss 4.35
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/cuda.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <weft/activation/file_store.hpp>
#include <weft/comm/trace_table.hpp>
#include <weft/data_parallel/data_parallel.hpp>
#include <weft/optim/state.hpp>
#include <weft/report/allocator.hpp>
#include <weft/report/memory_count.hpp>
#include <weft/report/progress.hpp>
#include <weft/weft.hpp>

#include "formula.hpp"
#include "sha256.hpp"

namespace {

using Json = nlohmann::ordered_json;

using Blocks = weft::WrapPolicy<llama::TransformerBlock>;
using TwoGroups = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;
using weft::Named;
using Strategies = weft::core::TypeList<Named<"single", weft::SingleDevice>, Named<"dp", weft::DataParallel>,
                                        Named<"ddp", weft::DDP<>>, Named<"fsdp", weft::FSDP<weft::FullShard, Blocks>>,
                                        Named<"fsdp-shard-grad-op", weft::FSDP<weft::ShardGradOp, Blocks>>,
                                        Named<"fsdp-no-shard", weft::FSDP<weft::NoShard, Blocks>>,
                                        Named<"hsdp", weft::FSDP<weft::HybridShard, Blocks, TwoGroups>>>;

/// Each strategy here is compiled in fp32; those that most programs use, in other numbers, too.
using Fp32Alone = weft::core::TypeList<Named<"32-true", weft::Fp32>>;
using Precisions = weft::core::TypeList<Named<"32-true", weft::Fp32>, Named<"bf16-mixed", weft::Bf16Mixed>,
                                        Named<"bf16-true", weft::Bf16>>;
template <class S>
inline constexpr bool has_precisions = std::is_same_v<S, weft::SingleDevice> || std::is_same_v<S, weft::DDP<>> ||
                                       std::is_same_v<S, weft::FSDP<weft::FullShard, Blocks>>;
template <class S>
using PrecisionsOf = std::conditional_t<has_precisions<S>, Precisions, Fp32Alone>;

struct Options {
  std::string strategy = "fsdp", precision = "32-true", model, optimizer, audit = "comm", text, export_dir, import_dir,
              offload_dir;
  int world = 2, replicate = 2, threads = 1;
  int64_t steps = 0, accumulate = 1, batch = 0, warmup = 0;
  double lr = 0, momentum = 0, weight_decay = 0.01, clip = 0, bucket_mb = NAN, temperature = 0.8, held_out = 0.05;
  uint32_t seed = 0;
  bool jsonl = false, no_norm = false, calls = false, defer_init = false, recompute = false;

  bool trains_on_text() const { return !text.empty(); }
};

void declare(CLI::App& app, Options& o) {
  app.add_option("--strategy", o.strategy, "single, dp, ddp, fsdp, fsdp-shard-grad-op, fsdp-no-shard or hsdp")
      ->capture_default_str();
  app.add_option("--precision", o.precision, "32-true; with single, ddp and fsdp also bf16-mixed or bf16-true")
      ->check(CLI::IsMember({"32-true", "bf16-mixed", "bf16-true"}))
      ->capture_default_str();
  app.add_option("--world", o.world, "number of processes (single: 1; dp: one, with so many replicas)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--replicate", o.replicate,
                 "hsdp: groups that each hold the whole model, sharded inside: 1, 2 or --world")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", o.threads, "intra-op threads per process")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--text", o.text, "train on the bytes of this file; without it on the formula's tokens");
  app.add_option("--held-out", o.held_out, "fraction at the text's end that is for validation")->capture_default_str();
  app.add_option("--model", o.model,
                 "tiny, odd, small, medium, deep, or text (4 layers, 192 wide; the default with --text)");
  app.add_option("--batch", o.batch, "samples of one micro-batch over all processes (default: the model's)")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", o.steps, "optimizer steps (default: 10, with --text 1200)")->check(CLI::PositiveNumber);
  app.add_option("--optimizer", o.optimizer, "sgd, adam or adamw (default: sgd, with --text adamw)");
  app.add_option("--lr", o.lr, "learning rate (default: sgd 0.5, adam and adamw 0.003)")->check(CLI::NonNegativeNumber);
  app.add_option("--momentum", o.momentum, "sgd only")->capture_default_str();
  app.add_option("--weight-decay", o.weight_decay, "adamw only")->capture_default_str();
  app.add_option("--accumulate", o.accumulate, "micro-batches per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--clip", o.clip, "largest gradient norm; 0: no clipping (with --text: 1)");
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--bucket-mb", o.bucket_mb,
                 "bucket size in MiB (default: ddp 25, fsdp 1; fsdp with 0: a unit a bucket)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--activation-checkpointing", o.recompute,
               "compute the activations of blocks again in backward instead of keeping them");
  app.add_option("--offload-activations", o.offload_dir,
                 "what blocks keep for backward waits in files below this folder")
      ->check(CLI::ExistingDirectory);
  app.add_option("--export", o.export_dir, "write init.safetensors and final.safetensors there");
  app.add_option("--import", o.import_dir, "start from init.safetensors there");
  app.add_option("--temperature", o.temperature, "of the sample printed at the end")->capture_default_str();
  app.add_option("--audit", o.audit,
                 "comm: list the collectives of one extra step; memory: what LibTorch allocates, from before the model "
                 "is built; none")
      ->check(CLI::IsMember({"comm", "memory", "none"}))
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps left out of the step times of the result")->capture_default_str();
  app.add_flag("--defer-init", o.defer_init,
               "build the model without memory; setup gives it, one parameter after another");
  app.add_flag("--calls", o.calls, "with --audit comm: each collective in issue order");
  app.add_flag("--no-norm", o.no_norm, "no gradient norms when not clipping (for timing)");
  app.add_flag("--jsonl", o.jsonl, "JSON lines and nothing else");
}

/// What was not said depends on the data.
void complete(Options& o, CLI::App const& app) {
  bool const text = o.trains_on_text();
  if (o.model.empty()) o.model = text ? "text" : "tiny";
  if (o.optimizer.empty()) o.optimizer = text ? "adamw" : "sgd";
  if (o.steps == 0) o.steps = text ? 1200 : 10;
  if (app.count("--lr") == 0) o.lr = o.optimizer == "sgd" ? 0.5 : 3e-3;
  if (text && app.count("--clip") == 0) o.clip = 1;
  if (o.strategy == "single") o.world = 1;
}

formula::Run shape_of(Options const& o) {
  formula::Run shape;
  if (o.model == "text") {
    shape = {{256, 192, 4, 6, 512, 128}, 8};
  } else if (auto const found = formula::shapes().find(o.model); found != formula::shapes().end()) {
    shape = found->second;
  } else {
    weft::fail<weft::ConfigurationError>("weft: --model ", o.model,
                                         " is unknown; write tiny, odd, small, medium, deep or text");
  }
  if (o.trains_on_text()) shape.vocab = 256;  // bytes
  if (o.batch > 0) shape.batch = o.batch;
  if (o.strategy != "dp" && (shape.batch < o.world || shape.batch % o.world != 0))
    weft::fail<weft::ConfigurationError>("weft: a batch of ", shape.batch, " samples does not divide among ", o.world,
                                         " processes; write --batch as a multiple of --world");
  return shape;
}

/// Warm-up over the first 5 %, then a cosine to a tenth, for text; constant otherwise.
double rate_at(Options const& o, int64_t step) {
  if (!o.trains_on_text()) return o.lr;
  double const warm = 0.05 * static_cast<double>(o.steps), at = static_cast<double>(step) + 1;
  if (at < warm) return o.lr * at / warm;
  double const way = (at - warm) / std::max(1.0, static_cast<double>(o.steps) - warm);
  return o.lr * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * way)));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::size_t bytes_of(std::vector<at::Tensor> const& tensors) {
  std::size_t bytes = 0;
  for (auto const& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

template <class Model>
int64_t num_parameters_of(Model const& model) {
  int64_t count = 0;
  for (auto const& row : model.table().rows()) count += row.global_numel();
  return count;
}

template <class Parameters>
std::string sha256_of(Parameters const& parameters) {
  Sha256 hash;
  for (auto const& parameter : parameters) {
    auto const dense = parameter.detach().cpu().to(at::kFloat).contiguous();
    hash.add(dense.const_data_ptr(), dense.nbytes());
  }
  return hash.hex();
}

/// An optimizer that the command line names: a description of one's own is any type with this make().
struct Chosen {
  Options const& o;
  std::unique_ptr<torch::optim::Optimizer> make(std::vector<weft::optim::NamedParameter> const& parameters) const {
    if (o.optimizer == "sgd") return weft::SGD{.lr = o.lr, .momentum = o.momentum}.make(parameters);
    if (o.optimizer == "adam") return weft::Adam{.lr = o.lr}.make(parameters);
    if (o.optimizer == "adamw") return weft::AdamW{.lr = o.lr, .weight_decay = o.weight_decay}.make(parameters);
    weft::fail<weft::ConfigurationError>("weft: --optimizer ", o.optimizer, " is unknown; write sgd, adam or adamw");
  }
};

/// What one step came to on this rank.
struct Step {
  double loss = 0, norm = NAN, wall_s = 0;
};

/// What a run leaves to tell.
struct Report {
  std::vector<Step> steps;
  double setup_s = 0;
  std::string init_sha256, final_sha256;
  std::vector<weft::comm::Event> setup_events, events;
  at::Tensor held{};       // per rank: bytes of parameters and of optimizer states
  at::Tensor allocated{};  // with --audit memory, per rank: bytes at most, and after the last step
  int64_t num_parameters = 0;
  bool ranks_agree = false;
  weft::report::Held own{};  // with --audit memory, of this rank
};

void print_jsonl(Options const& o, formula::Run const& shape, Report const& report) {
  auto const emit = [](Json const& line) { std::cout << line.dump() << "\n"; };
  auto const optional = [](double value) { return std::isnan(value) ? Json(nullptr) : Json(value); };
  emit({{"type", "config"},
        {"strategy", o.strategy},
        {"world", o.world},
        {"steps", o.steps},
        {"model", o.model},
        {"precision", o.precision},
        {"optimizer", o.optimizer},
        {"lr", o.lr},
        {"momentum", o.momentum},
        {"weight_decay", o.weight_decay},
        {"accumulate", o.accumulate},
        {"clip", o.clip},
        {"seed", o.seed},
        {"bucket_mb", optional(o.bucket_mb)},
        {"audit", o.audit},
        {"no_norm", o.no_norm},
        {"threads", o.threads},
        {"shape",
         {{"kind", "llama"},
          {"vocab", shape.vocab},
          {"dim", shape.dim},
          {"layers", shape.layers},
          {"heads", shape.heads},
          {"hidden", shape.hidden},
          {"seq", shape.seq},
          {"batch", shape.batch}}},
        {"n_params", report.num_parameters},
        {"init_sha256", report.init_sha256},
        {"versions", {{"weft", std::string(weft::version)}, {"torch", TORCH_VERSION}}}});
  Json losses = Json::array();
  std::vector<double> walls;
  for (std::size_t k = 0; k < report.steps.size(); ++k) {
    auto const& step = report.steps[k];
    losses.push_back(step.loss);
    walls.push_back(step.wall_s);
    emit({{"type", "step"},
          {"step", k},
          {"loss", step.loss},
          {"grad_norm", optional(step.norm)},
          {"wall_s", step.wall_s}});
  }
  if (o.audit == "comm") {
    Json comm = Json::object();
    for (auto const* list : {&report.setup_events, &report.events})
      for (auto const& [phase, sums] : weft::comm::trace_table(*list))
        for (auto const& [kind, sum] : sums)
          comm[phase][kind] = {{"count", sum.count}, {"bytes", sum.bytes}, {"ring_bytes", sum.ring_bytes}};
    Json line = {{"type", "audit"}, {"rank", 0}, {"comm", comm}};
    if (o.calls) {
      line["calls"] = Json::array();
      for (auto const& event : report.events)
        line["calls"].push_back({event.phase, name_of(event.kind), event.group_size, event.bytes});
    }
    emit(line);
  }
  for (int64_t rank = 0; rank < report.held.size(0); ++rank) {
    auto const params = report.held[rank][0].item<int64_t>(), state = report.held[rank][1].item<int64_t>();
    Json line = {{"type", "memory"},
                 {"rank", rank},
                 {"held",
                  {{"params_bytes", params},
                   {"params_numel_bytes", params},
                   {"optimizer_bytes", state},
                   {"optimizer_numel_bytes", state}}}};
    if (report.allocated.defined())
      line["alloc"] = {{"peak_bytes", report.allocated[rank][0].item<int64_t>()},
                       {"end_bytes", report.allocated[rank][1].item<int64_t>()}};
    emit(line);
  }
  walls.erase(walls.begin(),
              walls.begin() + std::min<std::ptrdiff_t>(o.warmup, static_cast<std::ptrdiff_t>(walls.size()) - 1));
  std::sort(walls.begin(), walls.end());
  emit({{"type", "result"},
        {"strategy", o.strategy},
        {"world", o.world},
        {"losses", losses},
        {"min_step_s", walls.front()},
        {"median_step_s", walls[walls.size() / 2]},
        {"setup_s", report.setup_s},
        {"final_sha256", report.final_sha256},
        {"ranks_agree", report.ranks_agree}});
  std::cout.flush();
}

/// Training on one rank. Everything here is the same for every strategy.
template <class Run>
class Training {
 public:
  Training(Run& fabric, Options const& options) : fabric_(fabric), o_(options), shape_(shape_of(options)) {}

  void run() {
    at::set_num_threads(o_.threads);
    fabric_.seed_everything(o_.seed);
    train();
  }

 private:
  template <class Model>
  std::string weights_sha256(Model const& model) {
    auto const whole = fabric_.summon_full_params(model);
    return sha256_of(model.parameters());
  }
  weft::report::Held held() const { return memory_ ? memory_->all() : weft::report::Held(); }

  void train() {
    if constexpr (requires { fabric_.config().bucket_bytes; }) {
      auto& bytes = fabric_.config().bucket_bytes;
      if (!std::isnan(o_.bucket_mb)) bytes = static_cast<std::size_t>(o_.bucket_mb * (1 << 20));
    }
    fabric_.activation_config() = {.recompute = o_.recompute, .offload = !o_.offload_dir.empty()};
    if (!o_.offload_dir.empty())
      fabric_.offload_activations_to(std::make_shared<weft::activation::FilesBelow>(o_.offload_dir));
    if (o_.audit == "memory") memory_.emplace();
    llama::LanguageModel module = nullptr;
    {
      weft::DeferredInit const scope({.deferred = o_.defer_init});
      module = llama::LanguageModel(shape_);
      formula::initialize(*module, o_.seed);
    }

    auto const start = std::chrono::steady_clock::now();
    fabric_.recorder().start();
    auto [model, optimizer] = fabric_.setup(module, Chosen{o_});
    auto const setup_events = fabric_.recorder().stop();
    double const setup_s = seconds_since(start);
    if (!o_.import_dir.empty()) fabric_.load_weights(std::filesystem::path(o_.import_dir) / "init.safetensors", model);
    auto const init_sha256 = o_.jsonl && !memory_ ? weights_sha256(model)
                                                  : "";  // it would be the largest thing that the run holds
    if (!o_.export_dir.empty()) fabric_.save_weights(std::filesystem::path(o_.export_dir) / "init.safetensors", model);

    if (o_.trains_on_text())
      train_on_text(model, optimizer, setup_s, init_sha256, setup_events);
    else
      train_on_formula(model, optimizer, setup_s, init_sha256, setup_events);
  }

  /// One optimizer step over `o_.accumulate` micro-batches. `batch(micro)` gives inputs and targets of this rank.
  template <class Model, class Optimizer, class Batch>
  Step step(Model& model, Optimizer& optimizer, Batch const& batch, bool want_norm) {
    Step result;
    auto const start = std::chrono::steady_clock::now();
    for (int64_t micro = 0; micro < o_.accumulate; ++micro) {
      auto const [inputs, targets] = batch(micro);
      auto const guard = fabric_.no_backward_sync(model, micro + 1 < o_.accumulate);
      auto loss = llama::loss_of(model(inputs), targets);
      if (o_.accumulate > 1) loss = loss / static_cast<double>(o_.accumulate);
      fabric_.backward(loss);
      result.loss += loss.template item<double>();
    }
    if (o_.clip > 0)
      result.norm = fabric_.clip_gradients(model, optimizer, weft::ClipNorm{o_.clip}).template item<double>();
    result.wall_s = seconds_since(start);
    if (o_.clip <= 0 && want_norm)
      result.norm = fabric_.clip_gradients(model, optimizer, weft::ClipNorm{INFINITY}).template item<double>();
    auto const again = std::chrono::steady_clock::now();
    {
      auto const phase = fabric_.phase("optimizer");
      optimizer.step();
      optimizer.zero_grad();
    }
    result.wall_s += seconds_since(again);
    auto const phase = fabric_.phase("metrics");
    result.loss = fabric_.all_reduce(result.loss);
    return result;
  }

  auto formula_batch(int64_t step, int64_t micro) const {
    int64_t const count = shape_.batch / fabric_.world_size();
    return formula::tokens((step * o_.accumulate + micro) * shape_.batch + fabric_.global_rank() * count, count, shape_,
                           o_.seed);
  }

  template <class Model, class Optimizer>
  void train_on_formula(Model& model, Optimizer& optimizer, double setup_s, std::string const& init_sha256,
                        std::vector<weft::comm::Event> const& setup_events) {
    std::vector<Step> steps;
    for (int64_t k = 0; k < o_.steps; ++k) {
      steps.push_back(
          step(model, optimizer, [&](int64_t micro) { return formula_batch(k, micro); }, !o_.no_norm && !memory_));
      if (!o_.jsonl) fabric_.print("step ", k, "  loss ", steps.back().loss, "  gradient norm ", steps.back().norm);
    }
    auto const own = held();
    if (!o_.export_dir.empty()) fabric_.save_weights(std::filesystem::path(o_.export_dir) / "final.safetensors", model);
    auto const final_sha256 = weights_sha256(model);
    std::vector<weft::comm::Event> events;
    if (o_.audit == "comm") {
      fabric_.recorder().start();
      step(model, optimizer, [&](int64_t micro) { return formula_batch(o_.steps, micro); }, false);
      events = fabric_.recorder().stop();
    }
    if (o_.jsonl)
      report_jsonl(model, optimizer,
                   {.steps = steps,
                    .setup_s = setup_s,
                    .init_sha256 = init_sha256,
                    .final_sha256 = final_sha256,
                    .setup_events = setup_events,
                    .events = events,
                    .own = own});
  }

  template <class Model, class Optimizer>
  void report_jsonl(Model& model, Optimizer& optimizer, Report report) {
    // The slowest rank decides how long a step took.
    auto walls = at::empty({static_cast<int64_t>(report.steps.size())}, at::kDouble);
    for (std::size_t k = 0; k < report.steps.size(); ++k) walls[static_cast<int64_t>(k)] = report.steps[k].wall_s;
    walls = fabric_.all_reduce(walls, weft::ReduceOp::max);
    for (std::size_t k = 0; k < report.steps.size(); ++k)
      report.steps[k].wall_s = walls[static_cast<int64_t>(k)].template item<double>();
    report.held = fabric_.all_gather(at::tensor({static_cast<int64_t>(bytes_of(model.parameters())),
                                                 static_cast<int64_t>(weft::optim::state_bytes(*optimizer))}));
    if (memory_)
      report.allocated = fabric_.all_gather(
          at::tensor({static_cast<int64_t>(report.own.peak_bytes), static_cast<int64_t>(report.own.bytes)}));
    std::string const first_sha256 = fabric_.broadcast(report.final_sha256);
    report.ranks_agree = fabric_.all_reduce(first_sha256 == report.final_sha256 ? 1 : 0, weft::ReduceOp::min) == 1;
    report.num_parameters = num_parameters_of(model);
    if (fabric_.is_global_zero()) print_jsonl(o_, shape_, report);
  }

  /// Mean loss in nats per byte over the held-out windows, each rank its share.
  template <class Model>
  double validate(Model& model, weft::data::ByteText const& held_out, std::size_t most_batches) {
    at::NoGradGuard const no_grad;
    model.eval();
    auto loader = fabric_.setup_dataloader(held_out, {.batch_size = 32, .uneven = weft::data::Uneven::keep});
    // Forward is collective where parameters are sharded, so all ranks validate on as many batches as the one with the
    // fewest.
    most_batches = std::min(most_batches, static_cast<std::size_t>(fabric_.all_reduce(
                                              static_cast<int64_t>(loader.size()), weft::ReduceOp::min)));
    double sum = 0, count = 0;
    for (auto const& batch : loader) {
      auto const rows = static_cast<double>(batch.data.size(0));
      sum += rows * llama::loss_of(model(batch.data), batch.target).template item<double>();
      count += rows;
      if (--most_batches == 0) break;
    }
    model.train();
    return fabric_.all_reduce(sum, weft::ReduceOp::sum) / fabric_.all_reduce(count, weft::ReduceOp::sum);
  }

  template <class Model, class Optimizer>
  void train_on_text(Model& model, Optimizer& optimizer, double setup_s, std::string const& init_sha256,
                     std::vector<weft::comm::Event> const& setup_events) {
    using weft::data::ByteText;
    using weft::data::Windows;
    auto const [training, held_out] = weft::data::Text::read(o_.text).split(o_.held_out);
    ByteText const validation(held_out, {.length = shape_.seq});
    auto loader = fabric_.setup_dataloader(
        ByteText(training, {.length = shape_.seq, .windows = Windows::random, .seed = o_.seed}),
        {.batch_size = static_cast<std::size_t>(shape_.batch / fabric_.world_size()), .drop_last = true});
    if (!o_.jsonl)
      fabric_.print(o_.text, ": ", training.size(), " bytes to train on, ", held_out.size(),
                    " held out (unigram entropy ", held_out.unigram_entropy(), " nats/byte)\n", o_.model, ": ",
                    num_parameters_of(model), " parameters, ", o_.strategy, " on ", fabric_.world_size(),
                    " process(es), ", shape_.batch * o_.accumulate, " x ", shape_.seq, " bytes a step");

    auto batches = loader.begin();
    auto const next_batch = [&](int64_t) {
      if (batches == loader.end()) batches = loader.begin();
      std::pair<at::Tensor, at::Tensor> result(batches->data, batches->target);
      ++batches;
      return result;
    };
    std::vector<Step> steps;
    auto const start = std::chrono::steady_clock::now();
    {
      weft::report::Progress progress(static_cast<std::size_t>(o_.steps),
                                      {.visible = fabric_.is_global_zero() && !o_.jsonl});
      double smooth = NAN;
      for (int64_t k = 0; k < o_.steps; ++k) {
        for (auto& group : optimizer->param_groups()) group.options().set_lr(rate_at(o_, k));
        steps.push_back(step(model, optimizer, next_batch, false));
        smooth = std::isnan(smooth) ? steps.back().loss : 0.95 * smooth + 0.05 * steps.back().loss;
        auto const done = static_cast<std::size_t>(k + 1);
        if (progress.is_due(done)) {
          char text[160];
          std::snprintf(text, sizeof text, "loss %.3f  %.0f tokens/s  %.0f MiB per process", smooth,
                        static_cast<double>(static_cast<int64_t>(done) * o_.accumulate * shape_.batch * shape_.seq) /
                            seconds_since(start),
                        static_cast<double>(weft::report::resident_bytes()) / (1 << 20));
          progress.update(done, text);
        }
        if (!o_.jsonl && (k + 1) % std::max<int64_t>(1, o_.steps / 5) == 0 && k + 1 < o_.steps) {
          double const loss = validate(model, validation, 16);
          fabric_.print("step ", k + 1, ": validation loss ", loss, " nats/byte on a part of the held-out text");
        }
      }
    }
    double const trained_s = seconds_since(start);
    auto const own = held();
    double const loss = validate(model, validation, validation.size().value());
    if (!o_.export_dir.empty()) fabric_.save_weights(std::filesystem::path(o_.export_dir) / "final.safetensors", model);
    if (o_.jsonl) {
      report_jsonl(model, optimizer,
                   {.steps = steps,
                    .setup_s = setup_s,
                    .init_sha256 = init_sha256,
                    .final_sha256 = weights_sha256(model),
                    .setup_events = setup_events,
                    .own = own});
      return;
    }
    fabric_.print("trained ", trained_s, " s; validation loss ", loss,
                  " nats/byte (unigram entropy of the held-out text ", held_out.unigram_entropy(), ")");
    if (!o_.export_dir.empty())
      fabric_.print("weights: ", (std::filesystem::path(o_.export_dir) / "final.safetensors").string());
    model.eval();
    auto const prompt = at::full({1, 1}, static_cast<int64_t>('\n'), at::kLong);
    auto const sample = model.template call<&llama::LanguageModelImpl::generate>(prompt, 400, o_.temperature);
    std::string text;
    for (int64_t i = 0; i < sample.size(1); ++i) text += static_cast<char>(sample[0][i].template item<int64_t>());
    fabric_.print("---", text, "\n---");
  }

  Run& fabric_;
  Options const& o_;
  formula::Run shape_;
  std::optional<weft::report::MemoryCount> memory_{};  // with --audit memory
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small language model; see the head of examples/train_lm.cpp");
  declare(app, options);
  CLI11_PARSE(app, argc, argv);
  complete(options, app);
  auto name = options.strategy;
  try {
    if (name == "hsdp" &&
        options.replicate != 2) {  // the number of groups is part of a type; here stands one of each kind
      if (options.replicate != 1 && options.replicate != options.world)
        weft::fail<weft::ConfigurationError>("weft: --replicate ", options.replicate,
                                             ": write 1, 2 or the number of processes, ", options.world);
      name = options.replicate == 1 ? "fsdp" : "fsdp-no-shard";
    }
    return weft::with_strategy<Strategies>(name, [&]<class S>(std::type_identity<S>) {
      if (!has_precisions<S> && options.precision != "32-true")
        weft::fail<weft::ConfigurationError>("weft: --precision ", options.precision,
                                             " is compiled for --strategy single, ddp and fsdp; found ",
                                             options.strategy, ": write 32-true, or one of those");
      return weft::with_strategy<PrecisionsOf<S>>(options.precision, [&]<class P>(std::type_identity<P>) {
        using Run = weft::Fabric<S, P, weft::On<weft::Cpu>, weft::ActivationCheckpointing<llama::TransformerBlock>,
                                 weft::OffloadActivations<llama::TransformerBlock>>;
        shape_of(options);  // refuses before any process starts
        if (options.trains_on_text()) weft::data::Text::read(options.text);
        return Run::launch({.devices = options.world}, [&](Run& fabric) { Training<Run>(fabric, options).run(); })
            .exit_code();
      });
    });
  } catch (weft::Error const& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
