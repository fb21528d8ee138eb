#include "test.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <weft/checkpoints/safetensors.hpp>

#include "raw_training.hpp"

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

namespace {

struct Ran {
  int exit_code;
  std::string out;
};

/// Runs a shell command; what it says on stderr comes after what it prints.
Ran run(std::string const& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  char buffer[4096];
  while (auto const count = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
  int const status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out};
}

std::string const train_lm = std::string(WEFT_BUILD_DIR) + "/examples/train_lm ";
std::filesystem::path const golden_folder = std::filesystem::path(WEFT_SOURCE_DIR) / "tests" / "data" / "golden";

Json golden(std::string const& name) {
  std::ifstream file(golden_folder / (name + ".json"));
  REQUIRE(file.good());
  return Json::parse(file);
}

/// Lines of a --jsonl run by type; it prints nothing else.
std::map<std::string, std::vector<Json>> lines_of(std::string const& arguments) {
  auto const ran = run(train_lm + arguments + " --jsonl");
  INFO(ran.out);
  REQUIRE(ran.exit_code == 0);
  std::map<std::string, std::vector<Json>> lines;
  std::istringstream text(ran.out);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("[W")) continue;  // a warning of LibTorch's, on standard error
    auto json = Json::parse(line);
    lines[json.at("type")].push_back(json);
  }
  return lines;
}

/// Names of the golden cases that end with the same bits.
std::vector<std::string> bitwise_peers_of(std::string const& name) {
  auto const agreement = golden("agreement");
  for (auto const& group : agreement.at("bitwise_equal_groups")) {
    auto const names = group.get<std::vector<std::string>>();
    if (std::find(names.begin(), names.end(), name) != names.end()) return names;
  }
  return {};
}

/// A golden case by LibTorch alone, on this processor: its bits are what ours are compared with; see [Note: bits of a
/// processor] in raw_training.hpp.
test::RawCurve reference_of(std::string const& name) {
  bool const shards = name.starts_with("fsdp2") || name.starts_with("hsdp");
  return test::raw_training({.shape = name.find("_odd") != name.npos ? "odd" : "tiny",
                             .bf16 = name.ends_with("bf16-true")     ? test::Bf16In::everything
                                     : !name.ends_with("bf16-mixed") ? test::Bf16In::nothing
                                     : shards                        ? test::Bf16In::parameter_copies
                                                                     : test::Bf16In::autocast,
                             .ranks = name.starts_with("single") ? 1 : 2});
}

std::filesystem::path scratch(std::string const& name) {
  auto const path = std::filesystem::temp_directory_path() /
                    ("weft-train-lm-" + std::to_string(::getpid()) + "-" + name);
  std::filesystem::remove_all(path);
  return path;
}

}  // namespace

namespace {

/// The same start, and losses and gradient norms of each step within 1e-6.
void check_curve(std::map<std::string, std::vector<Json>> const& lines, Json const& peer) {
  CHECK(lines.at("config").at(0).at("init_sha256") == peer.at("init_sha256"));
  CHECK(lines.at("config").at(0).at("n_params") == peer.at("n_params"));
  auto const& steps = lines.at("step");
  REQUIRE(steps.size() == peer.at("losses").size());
  for (std::size_t k = 0; k < steps.size(); ++k) {
    INFO("step " << k);
    CHECK(steps[k].at("loss").get<double>() == Catch::Approx(peer.at("losses")[k].get<double>()).epsilon(1e-6));
    CHECK(steps[k].at("grad_norm").get<double>() ==
          Catch::Approx(peer.at("grad_norms")[k].get<double>()).epsilon(1e-6));
    CHECK(steps[k].at("wall_s").get<double>() > 0);
  }
}

}  // namespace

TEST_CASE("the main job follows the peers' golden curves: losses, gradient norms, collectives",
          "[train_lm][processor]") {
  auto const name = GENERATE(as<std::string>{}, "single_tiny_sgd", "ddp-2_tiny_sgd", "ddp-4_tiny_sgd",
                             "single_tiny_adamw-acc2-clip", "ddp-2_tiny_adamw-acc2-clip", "ddp-4_tiny_adamw-acc2-clip",
                             "single_odd_sgd", "ddp-2_odd_sgd");
  INFO(name);
  auto const peer = golden(name);
  auto const lines = lines_of(peer.at("arguments").get<std::string>() + " --calls");
  check_curve(lines, peer);
  Json calls = Json::array();
  for (auto const& call : lines.at("audit").at(0).at("calls"))
    if (call[0] != "metrics") calls.push_back(call);
  CHECK(calls == peer.at("calls_rank0"));
  for (auto const& phase : {"backward", "clip", "optimizer", "forward"})
    CHECK(lines.at("audit").at(0).at("comm").value(phase, Json()) ==
          peer.at("comm_one_step_rank0").value(phase, Json()));
  for (auto const& memory : lines.at("memory"))
    CHECK(memory.at("held").at("params_bytes") == peer.at("held_by_rank")[0].at("params_bytes"));
  CHECK(lines.at("result").at(0).at("ranks_agree") == true);
}

namespace {

/// A sharded peer's arguments in our words. Without --bucket-mb 0, small units would share trips.
std::string our_arguments(Json const& peer) {
  auto arguments = peer.at("arguments").get<std::string>();
  for (auto const& [theirs, ours] : {std::pair("fsdp2-shard-grad-op", "fsdp-shard-grad-op"), std::pair("fsdp2", "fsdp"),
                                     std::pair(" --reshard auto", "")})
    if (auto const at = arguments.find(theirs); at != arguments.npos)
      arguments.replace(at, std::string(theirs).size(), ours);
  return arguments;
}

/// What is sent in one phase, by kind: calls and bytes.
std::map<std::string, std::pair<int, int64_t>> sums_of(Json const& calls) {
  std::map<std::string, std::pair<int, int64_t>> sums;
  for (auto const& call : calls) {
    if (call[0] == "metrics") continue;
    auto& sum =
        sums[call[0].get<std::string>() + " " + call[1].get<std::string>() + "@" + std::to_string(call[2].get<int>())];
    sum.first += 1;
    sum.second += call[3].get<int64_t>();
  }
  return sums;
}

}  // namespace

TEST_CASE("sharded, the main job follows FSDP2's golden curves, and never sends more", "[train_lm][processor]") {
  auto const name = GENERATE(as<std::string>{}, "fsdp2-2_tiny_sgd", "fsdp2-2_odd_sgd", "fsdp2-4_tiny_sgd",
                             "fsdp2-4_odd_sgd", "fsdp2-2_tiny_adamw-acc2-clip", "fsdp2-4_tiny_adamw-acc2-clip",
                             "fsdp2-auto-2_tiny_sgd", "fsdp2-auto-2_tiny_adamw-acc2-clip",
                             "fsdp2-shard-grad-op-2_tiny_sgd", "fsdp2-shard-grad-op-2_tiny_adamw-acc2-clip",
                             "hsdp-2x2_tiny_sgd", "hsdp-2x2_odd_sgd", "hsdp-2x2_tiny_adamw-acc2-clip");
  std::string const buckets = GENERATE("", " --bucket-mb 0");
  INFO(name << buckets);
  auto const peer = golden(name);
  auto const lines = lines_of(our_arguments(peer) + " --calls" + buckets);
  check_curve(lines, peer);
  auto const theirs = sums_of(peer.at("calls_rank0"));
  auto ours = sums_of(lines.at("audit").at(0).at("calls"));
  for (auto const& [what, sum] : ours) {
    INFO(what << ": " << sum.first << " calls, " << sum.second << " bytes");
    REQUIRE(theirs.count(what) == 1);
    CHECK(sum.first <= theirs.at(what).first);
    CHECK(sum.second <= theirs.at(what).second);
  }
  // One unit a trip, FSDP2 with its root kept is the same sequence.
  if (name == "fsdp2-auto-2_tiny_sgd" && !buckets.empty()) CHECK(ours == theirs);
  for (std::size_t rank = 0; rank < lines.at("memory").size(); ++rank)
    for (auto const& kind : {"params_bytes", "optimizer_bytes"})
      CHECK(lines.at("memory").at(rank).at("held").at(kind).get<int64_t>() <=
            peer.at("held_by_rank")[rank].at(kind).get<int64_t>());
  CHECK(lines.at("result").at(0).at("ranks_agree") == true);
}

TEST_CASE(
    "in other numbers the main job follows the peers' golden curves, ends with the bits of the same loop without weft, "
    "and holds no more",
    "[train_lm][precision][processor]") {
  auto const name = GENERATE(as<std::string>{}, "single_tiny_bf16-mixed", "ddp-2_tiny_bf16-mixed",
                             "fsdp2-2_tiny_bf16-mixed", "single_tiny_bf16-true", "ddp-2_tiny_bf16-true",
                             "fsdp2-2_tiny_bf16-true");
  INFO(name);
  auto const peer = golden(name);
  auto const lines = lines_of(our_arguments(peer));
  CHECK(lines.at("config").at(0).at("precision") == (name.ends_with("mixed") ? "bf16-mixed" : "bf16-true"));
  auto const& steps = lines.at("step");
  REQUIRE(steps.size() == peer.at("losses").size());
  auto const reference = reference_of(name);
  bool const has_recorded_bits = reference.final_sha256 == peer.at("final_sha256");
  for (std::size_t k = 0; k < steps.size(); ++k) {
    INFO("step " << k);
    auto const loss = steps[k].at("loss").get<double>(), norm = steps[k].at("grad_norm").get<double>();
    CHECK(loss == Catch::Approx(reference.losses[k]).epsilon(1e-6));
    CHECK(norm == Catch::Approx(reference.grad_norms[k]).epsilon(2e-6));
    // The losses of bf16 are 2e-5 to 2e-4 away from those of fp32, and another processor may round its products as far.
    CHECK(loss == Catch::Approx(peer.at("losses")[k].get<double>()).epsilon(has_recorded_bits ? 1e-6 : 5e-4));
    CHECK(norm == Catch::Approx(peer.at("grad_norms")[k].get<double>()).epsilon(has_recorded_bits ? 2e-6 : 1e-2));
  }
  CHECK(lines.at("result").at(0).at("final_sha256") == reference.final_sha256);
  for (std::size_t rank = 0; rank < lines.at("memory").size(); ++rank)
    CHECK(lines.at("memory").at(rank).at("held").at("params_bytes").get<int64_t>() <=
          peer.at("held_by_rank")[rank].at("params_bytes").get<int64_t>());
  CHECK(lines.at("result").at(0).at("ranks_agree") == true);
}

TEST_CASE("sharded, the main job holds no more than FSDP2, within steps and between them", "[train_lm]") {
  auto const name = GENERATE(as<std::string>{}, "fsdp2-2_tiny_sgd", "fsdp2-2_odd_sgd", "fsdp2-4_tiny_sgd",
                             "fsdp2-4_odd_sgd", "fsdp2-2_tiny_adamw-acc2-clip", "fsdp2-4_tiny_adamw-acc2-clip",
                             "fsdp2-auto-2_tiny_sgd", "fsdp2-auto-2_tiny_adamw-acc2-clip",
                             "fsdp2-shard-grad-op-2_tiny_sgd", "fsdp2-shard-grad-op-2_tiny_adamw-acc2-clip",
                             "hsdp-2x2_tiny_sgd", "hsdp-2x2_odd_sgd", "hsdp-2x2_tiny_adamw-acc2-clip");
  INFO(name);
  auto const peer = golden(name);
  // The peers' own count is of three steps, of units one by one, and over a backend that moves nothing: what ours
  // receives from a third and fourth rank comes on top.
  auto const lines = lines_of(our_arguments(peer) + " --bucket-mb 0 --steps 3 --audit memory");
  auto const& ours = lines.at("memory").at(0).at("alloc");
  auto const& shape = lines.at("config").at(0).at("shape");
  auto const dim = shape.at("dim").get<int64_t>(), hidden = shape.at("hidden").get<int64_t>(),
             chunk = (2 * dim + 4 * dim * dim + 3 * dim * hidden) / 4 * static_cast<int64_t>(sizeof(float));
  auto const received = name.starts_with("fsdp2-4") ? 2 * chunk : 0;
  auto const& theirs = peer.at("cpu_alloc_by_rank").at(0);
  CHECK(ours.at("peak_bytes").get<int64_t>() <= theirs.at("peak_bytes").get<int64_t>() + received);
  CHECK(ours.at("end_bytes").get<int64_t>() <= theirs.at("end_bytes").get<int64_t>());
}

TEST_CASE("final weights are the bits of the same loop without weft, and the peers' where those have them",
          "[train_lm][processor]") {
  auto const name = GENERATE(as<std::string>{}, "single_tiny_sgd", "ddp-2_tiny_sgd", "single_odd_sgd", "ddp-2_odd_sgd",
                             "fsdp2-2_tiny_sgd", "fsdp2-auto-2_tiny_sgd", "fsdp2-shard-grad-op-2_tiny_sgd",
                             "fsdp2-2_odd_sgd");
  INFO(name);
  auto const peer = golden(name);
  if (!name.starts_with("single")) REQUIRE(bitwise_peers_of(name).size() > 1);
  auto const ours = lines_of(our_arguments(peer)).at("result").at(0).at("final_sha256").get<std::string>(),
             reference = reference_of(name).final_sha256;
  CHECK(ours == reference);
  // One rank's recorded bits tell whether this processor has them: then all that peers have recorded is weft's, too.
  auto const single = name.find("_odd") == name.npos ? "single_tiny_sgd" : "single_odd_sgd";
  if (reference_of(single).final_sha256 == golden(single).at("final_sha256")) CHECK(ours == peer.at("final_sha256"));
}

TEST_CASE("under DataParallel the main job follows the curve of one device, also where the batch does not divide",
          "[train_lm][dp][processor]") {
  for (auto const* const name : {"single_tiny_sgd", "single_tiny_adamw-acc2-clip"}) {
    auto const peer = golden(name);
    auto arguments = peer.at("arguments").get<std::string>();
    auto const single = arguments.find("--strategy single");
    REQUIRE(single != arguments.npos);
    check_curve(lines_of(arguments.replace(single, 17, "--strategy dp --world 3")), peer);
  }
}

TEST_CASE("initial weights are the recorded file, and --import starts from it", "[train_lm]") {
  auto const shape = GENERATE(as<std::string>{}, "tiny", "odd");
  auto const folder = scratch(shape);
  REQUIRE(lines_of("--strategy single --steps 1 --audit none --model " + shape + " --export " + folder.string())
              .count("result") == 1);
  auto const recorded =
      weft::checkpoints::load_safetensors((golden_folder / ("init_" + shape + "_seed0.safetensors")).string());
  auto const exported = weft::checkpoints::load_safetensors((folder / "init.safetensors").string());
  std::map<std::string, at::Tensor> by_name(exported.begin(), exported.end());
  REQUIRE(by_name.size() == recorded.size());
  for (auto const& [tensor_name, tensor] : recorded) CHECK(by_name.at(tensor_name).equal(tensor));
  // Started from the file of another seed, it goes on as that seed.
  auto const imported = lines_of("--strategy ddp --world 2 --seed 5 --steps 1 --audit none --model " + shape +
                                 " --import " + folder.string());
  CHECK(imported.at("config").at(0).at("init_sha256") ==
        lines_of("--strategy single --steps 1 --audit none --model " + shape).at("config").at(0).at("init_sha256"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("world 3 trains like one process, with a batch of 12", "[train_lm]") {
  auto const one = lines_of("--strategy single --batch 12 --optimizer adamw --clip 0.5"),
             three = lines_of("--strategy ddp --world 3 --batch 12 --optimizer adamw --clip 0.5");
  for (std::size_t k = 0; k < one.at("step").size(); ++k) {
    CHECK(three.at("step")[k].at("loss").get<double>() ==
          Catch::Approx(one.at("step")[k].at("loss").get<double>()).epsilon(1e-6));
    CHECK(three.at("step")[k].at("grad_norm").get<double>() ==
          Catch::Approx(one.at("step")[k].at("grad_norm").get<double>()).epsilon(1e-6));
  }
}

TEST_CASE("final weights equal a live peer's, bit for bit", "[train_lm][peers]") {
  char const* const python = std::getenv("WEFT_PEER_PYTHON");
  if (!python) SKIP("no Python with torch and Lightning: bash tests/run.sh --peers installs one");
  auto const arguments = GENERATE(
      as<std::string>{}, "--strategy single --model tiny", "--strategy ddp --world 2 --model tiny",
      "--strategy ddp --world 2 --model odd --momentum 0.0", "--strategy fsdp2 --world 2 --model tiny",
      "--strategy fsdp2-shard-grad-op --world 2 --model odd");
  INFO(arguments);
  auto const peer = scratch("peer"), ours = scratch("ours");
  auto const ran = run(std::string(python) + " " + WEFT_SOURCE_DIR + "/benchmarks/peers/peer_train.py " + arguments +
                       " --audit none --export " + peer.string());
  INFO(ran.out);
  REQUIRE(ran.exit_code == 0);
  lines_of(our_arguments({{"arguments", arguments}}) + " --audit none --export " + ours.string());
  auto const theirs = weft::checkpoints::load_safetensors((peer / "final.safetensors").string());
  auto const mine = weft::checkpoints::load_safetensors((ours / "final.safetensors").string());
  std::map<std::string, at::Tensor> by_name(mine.begin(), mine.end());
  REQUIRE(by_name.size() == theirs.size());
  for (auto const& [tensor_name, tensor] : theirs) {
    INFO(tensor_name);
    CHECK(by_name.at(tensor_name).equal(tensor));
  }
  std::filesystem::remove_all(peer);
  std::filesystem::remove_all(ours);
}

TEST_CASE("real text: trains, validates, writes weights, prints a sample", "[train_lm]") {
  auto const folder = scratch("text");
  std::filesystem::create_directories(folder);
  {
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 400; ++i) text << "the quick brown fox jumps over the lazy dog " << i % 10 << "\n";
  }
  for (auto const* strategy : {"single", "ddp --world 2", "fsdp --world 2", "hsdp --world 2 --replicate 2"}) {
    auto const ran = run(train_lm + "--model tiny --steps 60 --lr 0.01 --text " + (folder / "text.txt").string() +
                         " --export " + folder.string() + " --strategy " + strategy);
    INFO(ran.out);
    REQUIRE(ran.exit_code == 0);
    CHECK_THAT(ran.out, ContainsSubstring("unigram entropy") && ContainsSubstring("60/60") &&
                            ContainsSubstring("tokens/s") && ContainsSubstring("MiB per process") &&
                            ContainsSubstring("---"));
    auto const at = ran.out.find("validation loss ", ran.out.find("trained "));
    REQUIRE(at != std::string::npos);
    CHECK(std::stod(ran.out.substr(at + 16)) < 1.5);
    CHECK(std::filesystem::exists(folder / "final.safetensors"));
  }
  // One step only.
  CHECK(run(train_lm + "--model tiny --steps 1 --strategy ddp --world 2 --text " + (folder / "text.txt").string())
            .exit_code == 0);
  std::filesystem::remove_all(folder);
}

TEST_CASE("bad input to the main job gets a clear error and a non-zero exit", "[train_lm]") {
  auto const refused = [](std::string const& arguments, std::string const& text) {
    auto const ran = run(train_lm + arguments);
    INFO(ran.out);
    CHECK(ran.exit_code != 0);
    CHECK_THAT(ran.out, ContainsSubstring(text));
  };
  auto const empty = scratch("empty");
  std::ofstream(empty).close();
  refused("--strategy fsdb", "fsdb");
  refused("--strategy fsdb", "single");  // the known names
  refused("--text /does/not/exist", "/does/not/exist");
  refused("--text " + empty.string(), "is empty");
  refused("--strategy ddp --world 3", "a batch of 8 samples does not divide among 3 processes");
  refused("--strategy ddp --world 9", "a batch of 8 samples does not divide among 9 processes");
  refused("--model huge", "--model huge is unknown");
  refused("--optimizer lion", "--optimizer lion is unknown");
  refused("--no-such-flag", "--no-such-flag");
  refused("--precision 16-mixed", "bf16-mixed");  // the known ones
  refused("--strategy fsdp-no-shard --precision bf16-true",
          "--precision bf16-true is compiled for --strategy single, ddp and fsdp");
  for (auto const* flag : {"--world", "--steps", "--accumulate", "--threads", "--batch"})
    refused(std::string(flag) + " 0", flag);
  refused("--bucket-mb -1", "--bucket-mb");
  refused("--import /does/not/exist", "/does/not/exist");
  std::filesystem::remove(empty);
}

TEST_CASE("activations that blocks compute again, or put away, leave the final weights and the collectives as they are",
          "[train_lm][recompute]") {
  auto const folder = scratch("activations");
  std::filesystem::create_directories(folder);
  for (auto const* const strategy :
       {"single", "dp --world 2", "ddp --world 2", "fsdp --world 2 --bucket-mb 0",
        "fsdp-shard-grad-op --world 3 --batch 12", "fsdp-no-shard --world 2", "hsdp --world 4"}) {
    auto const arguments = std::string("--model odd --accumulate 2 --clip 0.5 --strategy ") + strategy;
    auto const kept = lines_of(arguments);
    for (auto const& how : {std::string(" --activation-checkpointing"), " --offload-activations " + folder.string(),
                            " --activation-checkpointing --offload-activations " + folder.string()}) {
      INFO(arguments << how);
      auto const lines = lines_of(arguments + how);
      CHECK(lines.at("result").at(0).at("final_sha256") == kept.at("result").at(0).at("final_sha256"));
      CHECK(lines.at("result").at(0).at("losses") == kept.at("result").at(0).at("losses"));
      CHECK(lines.at("audit") == kept.at("audit"));
    }
  }
  CHECK(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}
