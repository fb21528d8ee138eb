#include "test.hpp"

#include <sys/stat.h>

#include <weft/checkpoints/safetensors.hpp>
#include <weft/core/atomic_file.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

using weft::checkpoints::load_safetensors;
using weft::checkpoints::NamedTensors;
using weft::checkpoints::save_safetensors;

namespace {

std::string const formats = WEFT_TEST_DATA "/formats/";

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("weft-safetensors-" + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(path);
  }
  std::string operator/(std::string const& name) const { return (path / name).string(); }
  std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()));
  }
};
std::string bytes_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void put(std::string const& path, std::string const& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
std::string file_of(std::string header, std::string const& data) {
  std::string text(8, '\0');
  std::uint64_t const length = header.size();
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}
at::Tensor find(NamedTensors const& tensors, std::string const& name) {
  for (auto const& [found, tensor] : tensors)
    if (found == name) return tensor;
  FAIL("no tensor " << name);
  return {};
}
bool same_bytes(at::Tensor const& a, at::Tensor const& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0);
}

// The fixtures' formula: element j of tensor number salt.
at::Tensor fill(std::vector<std::int64_t> const& shape, at::ScalarType dtype, int salt) {
  at::Tensor const j = torch::arange(c10::multiply_integers(shape), at::kLong);
  return (torch::remainder(j * 37 + salt * 11, 101) - 50).to(at::kDouble).div(64).reshape(shape).to(dtype);
}
NamedTensors weights_fixture() {
  return {{"l1.weight", fill({5, 6}, at::kFloat, 1)},
          {"l1.bias", fill({5}, at::kFloat, 2)},
          {"emb", fill({7, 6}, at::kBFloat16, 0)},
          {"half", fill({3}, at::kHalf, 3)},
          {"ids", torch::arange(4, at::kLong)},
          {"mask", torch::tensor({true, false, true})},
          {"scalar", torch::tensor(2.5f)},
          {"empty", torch::empty({0, 3})},
          {"bytes", torch::arange(5, at::kByte)},
          {"double", torch::tensor({0.1, -0.2}, at::kDouble)}};
}

// every_dtype.safetensors was made by torch 2.15 and safetensors 0.8.0:
//   names = "bool uint8 int8 float8_e5m2 float8_e4m3fn int16 uint16 float16 bfloat16 int32 uint32 float32 complex64
//   float64 int64 uint64".split() t = {"every." + n: (torch.arange(6) % 2).reshape(2, 3).to(getattr(torch, n)) for n in
//   names} t |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "a \"quoted\" näme": torch.arange(5,
//   dtype=torch.int16)} safetensors.torch.save_file(t, "every_dtype.safetensors", metadata={"format": "pt"})
NamedTensors every_dtype_fixture() {
  NamedTensors tensors;
  for (auto const& [name, dtype] :
       std::vector<std::pair<std::string, at::ScalarType>>{{"bool", at::kBool},
                                                           {"uint8", at::kByte},
                                                           {"int8", at::kChar},
                                                           {"float8_e5m2", at::kFloat8_e5m2},
                                                           {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                           {"int16", at::kShort},
                                                           {"uint16", at::kUInt16},
                                                           {"float16", at::kHalf},
                                                           {"bfloat16", at::kBFloat16},
                                                           {"int32", at::kInt},
                                                           {"uint32", at::kUInt32},
                                                           {"float32", at::kFloat},
                                                           {"complex64", at::kComplexFloat},
                                                           {"float64", at::kDouble},
                                                           {"int64", at::kLong},
                                                           {"uint64", at::kUInt64}})
    tensors.emplace_back("every." + name, torch::remainder(torch::arange(6), 2).reshape({2, 3}).to(dtype));
  tensors.emplace_back("scalar", torch::tensor(2.5f));
  tensors.emplace_back("empty", torch::zeros({0, 3}));
  tensors.emplace_back("a \"quoted\" n\xc3\xa4me", torch::arange(5, at::kShort));
  return tensors;
}

}  // namespace

TEST_CASE("a file made by Python's safetensors is read, and written again byte for byte", "[checkpoint]") {
  auto const [file, expected] = GENERATE(values<std::pair<std::string, NamedTensors>>(
      {{"weights.safetensors", weights_fixture()}, {"every_dtype.safetensors", every_dtype_fixture()}}));
  INFO(file);
  NamedTensors const loaded = load_safetensors(formats + file);
  CHECK(loaded.size() == expected.size());
  for (auto const& [name, tensor] : expected) {
    INFO(name);
    CHECK(same_bytes(find(loaded, name), tensor));
  }
  Folder const folder;
  save_safetensors(folder / "again.safetensors", expected);
  CHECK(bytes_of(folder / "again.safetensors") == bytes_of(formats + file));
  NamedTensors reversed(expected.rbegin(), expected.rend());
  save_safetensors(folder / "again.safetensors", reversed);
  CHECK(bytes_of(folder / "again.safetensors") == bytes_of(formats + file));
  CHECK(folder.num_files() == 1);
}

TEST_CASE("names, shapes and dtypes are those that the fixture's description lists", "[checkpoint]") {
  auto const expected = nlohmann::json::parse(bytes_of(formats + "weights.expected.json")).at("tensors");
  std::map<std::string, std::string> const dtypes{{"float32", "Float"}, {"float64", "Double"}, {"bfloat16", "BFloat16"},
                                                  {"float16", "Half"},  {"int64", "Long"},     {"bool", "Bool"},
                                                  {"uint8", "Byte"}};
  auto const loaded = load_safetensors(formats + "weights.safetensors");
  CHECK(loaded.size() == expected.size());
  for (auto const& [name, tensor] : loaded) {
    CHECK(tensor.sizes().vec() == expected.at(name).at("shape").get<std::vector<std::int64_t>>());
    CHECK(c10::toString(tensor.scalar_type()) == dtypes.at(expected.at(name).at("dtype")));
  }
}

TEST_CASE("tensors of any layout are written row by row", "[checkpoint]") {
  Folder const folder;
  at::Tensor const base = torch::arange(24, at::kFloat).reshape({2, 3, 4});
  NamedTensors const tensors{{"transposed", base.transpose(0, 2)},
                             {"strided", base.slice(2, 0, 4, 3)},
                             {"expanded", torch::ones({1}).expand({3, 2})},
                             {"conjugated", torch::complex(torch::ones({2}), torch::ones({2})).conj()},
                             {"trained", torch::ones({2}, torch::requires_grad())}};
  save_safetensors(folder / "deep/down/file.safetensors", tensors, {});
  auto const loaded = load_safetensors(folder / "deep/down/file.safetensors");
  for (auto const& [name, tensor] : tensors) CHECK(at::equal(find(loaded, name), tensor.detach()));
  CHECK(!find(loaded, "trained").requires_grad());
}

TEST_CASE("metadata and odd names survive", "[checkpoint]") {
  Folder const folder;
  std::string const odd = "tab\t\"quote\" \\ slash \x01 \xc3\xa4 \xf0\x9f\xa7\xb5";
  save_safetensors(folder / "odd", {{odd, torch::ones({1})}, {"", torch::zeros({1})}}, {{"step", "7"}, {"note", odd}});
  weft::checkpoints::SafetensorsFile const file(folder / "odd");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"step", "7"}, {"note", odd}});
  CHECK(file.entries()[1].name == odd);

  put(folder / "escaped",
      file_of(R"({"\u00e4\ud83e\uddf5\/\u0041":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}} )", "x"));
  CHECK(load_safetensors(folder / "escaped")[0].first == "\xc3\xa4\xf0\x9f\xa7\xb5/A");
  put(folder / "nothing", file_of("{}", ""));
  CHECK(load_safetensors(folder / "nothing").empty());
}

TEST_CASE("a file is replaced whole or not at all", "[checkpoint]") {
  Folder const folder;
  save_safetensors(folder / "w", {{"a", torch::ones({3})}});
  std::string const before = bytes_of(folder / "w");
  // The last tensor cannot be read; the first ones may already be on the disk by then.
  at::Tensor meta = torch::empty({3}, at::kMeta);
  CHECK_THROWS(save_safetensors(folder / "w", {{"a", torch::zeros({3})}, {"b", meta}}));
  CHECK(bytes_of(folder / "w") == before);
  CHECK(folder.num_files() == 1);
  {
    weft::core::AtomicFile abandoned(folder / "w");
    abandoned.write("half", 4);
    CHECK(bytes_of(folder / "w") == before);
  }
  CHECK(folder.num_files() == 1);
  save_safetensors(folder / "w", {{"a", torch::zeros({3})}});
  CHECK(bytes_of(folder / "w") != before);
}

TEST_CASE("what is no file is not replaced by one, and a link stays", "[checkpoint]") {
  auto const folder = std::filesystem::temp_directory_path() / ("weft-links-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  auto const write = [&](char const* name, std::string const& text) {
    weft::core::AtomicFile file(folder / name);
    file.write(text.data(), text.size());
    file.commit();
  };
  write("target", "old");
  std::filesystem::create_symlink("target", folder / "link");
  write("link", "new text");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(std::filesystem::file_size(folder / "target") == 8);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(write("pipe", "text"), Catch::Matchers::ContainsSubstring("it is a device, a pipe or a socket"));
  CHECK(std::filesystem::is_fifo(folder / "pipe"));
  std::string const long_name(250, 'n');
  write(long_name.c_str(), "text");
  CHECK(std::filesystem::exists(folder / long_name));
  std::filesystem::remove_all(folder);
}

TEST_CASE("what cannot be written is refused by name", "[checkpoint]") {
  using Catch::Matchers::ContainsSubstring;
  Folder const folder;
  auto save = [&](NamedTensors const& tensors) { save_safetensors(folder / "w", tensors); };
  CHECK_THROWS_WITH(save({{"gone", at::Tensor()}}), ContainsSubstring("tensor gone is undefined"));
  CHECK_THROWS_WITH(save({{"a", torch::ones({1})}, {"a", torch::ones({1})}}),
                    ContainsSubstring("tensor a is there twice"));
  CHECK_THROWS_WITH(save({{"__metadata__", torch::ones({1})}}), ContainsSubstring("keeps for itself"));
  CHECK_THROWS_WITH(save({{"s", torch::ones({2, 2}).to_sparse()}}), ContainsSubstring("tensor s has layout"));
  CHECK_THROWS_WITH(save({{"c", torch::ones({1}, at::kComplexDouble)}}), ContainsSubstring("tensor c has dtype"));
  CHECK(folder.num_files() == 0);
  CHECK_THROWS_WITH(save_safetensors(folder.path.string(), {}), ContainsSubstring("is a directory"));
  put(folder / "plain", "x");
  CHECK_THROWS_AS(save_safetensors(folder / "plain/w", {}), weft::CheckpointError);
}

TEST_CASE("every malformed file is refused with its name", "[checkpoint]") {
  struct Row {
    std::string what, bytes, message;
  };
  auto one = [](std::string const& entry, std::string const& data = "abcd") {
    return file_of("{" + entry + "}", data);
  };
  auto const row = GENERATE_COPY(values<Row>({
      {"empty", "", "has 0 bytes"},
      {"short", "1234567", "has 7 bytes"},
      {"header beyond the file", file_of("{}", "").replace(0, 1, "\x7f"),
       "announces a header of 127 bytes, but has 10 in all"},
      {"header of 2^63", std::string("\0\0\0\0\0\0\0\x80", 8), "at most 100000000"},
      {"header above the cap", std::string("\1\xe1\xf5\5\0\0\0\0", 8),
       "announces a header of 100000001 bytes, and at most"},
      {"no JSON", file_of("hello", ""), "does not begin with {"},
      {"empty header", file_of("", ""), "does not begin with {"},
      {"leading space", file_of(" {}", ""), "does not begin with {"},
      {"a list", file_of("[]", ""), "does not begin with {"},
      {"unclosed", file_of("{", ""), "lacks a"},
      {"trailing words", file_of("{}x", ""), "goes on after"},
      {"trailing comma", one(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"), "lacks a"},
      {"unknown dtype", one(R"("a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]})"), "tensor a: unknown dtype F31"},
      {"dtype no string", one(R"("a":{"dtype":7,"shape":[1],"data_offsets":[0,4]})"), "lacks a \""},
      {"no dtype", one(R"("a":{"shape":[1],"data_offsets":[0,4]})"), "tensor a no dtype"},
      {"no shape", one(R"("a":{"dtype":"F32","data_offsets":[0,4]})"), "tensor a no shape"},
      {"no offsets", one(R"("a":{"dtype":"F32","shape":[1]})"), "tensor a no data_offsets"},
      {"three offsets", one(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})"), "tensor a 3 data_offsets"},
      {"unknown word", one(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":[]})"), "unknown word x"},
      {"negative dim", one(R"("a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), "whole number"},
      {"fraction", one(R"("a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})"), "lacks a ]"},
      {"leading zero", one(R"("a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]})"), "leading 0"},
      {"huge number", one(R"("a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]})"),
       "beyond 64 bits"},
      {"huge dim", one(R"("a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})"), "a dim of"},
      {"product overflows", one(R"("a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})"),
       "tensor a: its shape has more elements"},
      {"out of range", one(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
       "tensor a: data_offsets [0, 8] do not lie within the 4 bytes"},
      {"backwards", one(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), "tensor a: data_offsets [4, 0]"},
      {"size mismatch", one(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
       "tensor a: shape and dtype F32 make 8 bytes, data_offsets 4"},
      {"overlap",
       one(R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]})"),
       "tensor b begins at byte 2 of the data, but the one before ends at 3: they overlap"},
      {"gap",
       one(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]})"),
       "there is a gap"},
      {"gap in front", one(R"("a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]})"), "there is a gap"},
      {"bytes left over", one(R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]})"),
       "1 bytes at the end belong to no tensor"},
      {"cut short", one(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "abc"),
       "tensor a: data_offsets [0, 4]"},
      {"name twice",
       one(R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]})"),
       "names a twice"},
      {"word twice", one(R"("a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"), "gives dtype twice"},
      {"metadata twice", one(R"("__metadata__":{"k":"1","k":"2"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})"),
       "names k twice"},
      {"metadata no string", one(R"("__metadata__":{"k":1},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})"),
       "lacks a \""},
      {"bad escape", one(R"("\q":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})"), "unknown escape"},
      {"half a character", one(R"("\ud83e":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})"), "half a character"},
      {"broken \\u", one(R"("\u00g0":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})"), "broken \\u"},
      {"control character", one("\"a\n\":{}"), "control character"},
      {"bool of 2", one(R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]})", "\2"), "tensor a has dtype BOOL"},
  }));
  INFO(row.what);
  Folder const folder;
  put(folder / "bad.safetensors", row.bytes);
  CHECK_THROWS_AS(load_safetensors(folder / "bad.safetensors"), weft::CheckpointError);
  CHECK_THROWS_WITH(
      load_safetensors(folder / "bad.safetensors"),
      Catch::Matchers::ContainsSubstring("bad.safetensors") && Catch::Matchers::ContainsSubstring(row.message));
}

TEST_CASE("a fixture damaged at any byte of its header is refused or means the same, and never crashes",
          "[checkpoint]") {
  Folder const folder;
  std::string const good = bytes_of(formats + "weights.safetensors");
  std::size_t const header_bytes = static_cast<unsigned char>(good[0]) + 256u * static_cast<unsigned char>(good[1]);
  std::size_t refused = 0, read = 0;
  for (std::size_t at = 0; at < header_bytes; ++at)
    for (char const damage : {'\0', '"', '9', '\xff'}) {
      std::string bad = good.substr(8, header_bytes);
      if (bad[at] == damage) continue;
      bad[at] = damage;
      try {
        weft::checkpoints::check_ranges("bad", weft::checkpoints::HeaderReader("bad", bad).read(),
                                        good.size() - 8 - header_bytes);
        ++read;
      } catch (weft::CheckpointError const&) {
        ++refused;
      }
    }
  for (std::size_t length = 0; length < good.size(); length += 31) {
    put(folder / "bad", good.substr(0, length));
    CHECK_THROWS_AS(load_safetensors(folder / "bad"), weft::CheckpointError);
  }
  CHECK(refused > 2000);
  CHECK(read < 300);  // letters of names
}

TEST_CASE("a file that is not there is named", "[checkpoint]") {
  CHECK_THROWS_WITH(load_safetensors("/nowhere/w.safetensors"),
                    Catch::Matchers::ContainsSubstring("/nowhere/w.safetensors: No such file"));
  CHECK_THROWS_AS(load_safetensors(std::filesystem::temp_directory_path().string()), weft::CheckpointError);
}
