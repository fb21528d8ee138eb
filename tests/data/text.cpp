#include "test.hpp"

#include <weft/data/text.hpp>

#include <weft/data/loader.hpp>
#include <weft/data/words.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

using weft::data::ByteText;
using weft::data::Text;
using weft::data::Windows;

namespace {

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("weft-text-" + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(std::string const& name, std::string const& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return (path / name).string();
  }
};

std::string window(at::Tensor const& row) {
  std::string text;
  for (std::int64_t i = 0; i < row.size(0); ++i) text += static_cast<char>(row[i].item<int>());
  return text;
}

}  // namespace

TEST_CASE("a text file is read byte by byte", "[data]") {
  Folder const folder;
  std::string content;
  for (int i = 0; i < 256 * 300; ++i) content += static_cast<char>(i * 7);
  Text const text = Text::read(folder.file("bytes.bin", content));
  REQUIRE(text.size() == content.size());
  CHECK(std::equal(content.begin(), content.end(), text.data(),
                   [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; }));
  CHECK(std::abs(text.unigram_entropy() - std::log(256.0)) < 1e-12);
}

TEST_CASE("a mapped file is the same text", "[data]") {
  Folder const folder;
  auto const path = folder.file("mapped.txt", "0123456789");
  auto const [first, second] = Text::map(path).split(0.3);
  CHECK(std::string(first.data(), first.data() + first.size()) == "0123456");
  CHECK(std::string(second.data(), second.data() + second.size()) == "789");
  Text const copy = second;
  CHECK(copy.data() == second.data());
  CHECK_THROWS_WITH(Text::map(folder.file("nothing.txt", "")),
                    Catch::Matchers::ContainsSubstring("nothing.txt: is empty"));
  CHECK_THROWS_WITH(Text::map((folder.path / "none.txt").string()),
                    Catch::Matchers::ContainsSubstring("none.txt: No such file"));
  CHECK_THROWS_WITH(Text::map(folder.path.string()), Catch::Matchers::ContainsSubstring("is a directory"));
  CHECK_THROWS_WITH(Text::map("/dev/null"), Catch::Matchers::ContainsSubstring("Text::read"));
}

TEST_CASE("the validation part is the end of the text", "[data]") {
  auto const [train, validation] = Text::of("0123456789abcdefghij").split(0.25);
  CHECK(train.size() == 15);
  CHECK(validation.size() == 5);
  CHECK(validation.data()[0] == 'f');
  CHECK(std::abs(Text::of("aabb").unigram_entropy() - std::log(2.0)) < 1e-12);
  CHECK(Text::of("aaaa").unigram_entropy() == 0);
}

TEST_CASE("windows lie side by side and targets are one byte later", "[data]") {
  ByteText text(Text::of("0123456789"), {.length = 3});
  CHECK(text.size() == 3);
  std::vector<std::size_t> const indices{2, 0};
  auto const batch = text.get_batch(indices);
  CHECK(batch.data.sizes() == at::IntArrayRef({2, 3}));
  CHECK(batch.data.scalar_type() == at::kLong);
  CHECK(batch.data.is_contiguous());
  CHECK(window(batch.data[0]) == "678");
  CHECK(window(batch.target[0]) == "789");
  CHECK(window(batch.data[1]) == "012");
  CHECK(window(batch.target[1]) == "123");

  CHECK(ByteText(Text::of("0123"), {.length = 3}).size() == 1);
  CHECK(ByteText(Text::of("012345"), {.length = 3}).size() == 1);
  CHECK(ByteText(Text::of("0123456"), {.length = 3}).size() == 2);
  ByteText overlapping(Text::of("0123456789"), {.length = 3, .stride = 2});
  CHECK(overlapping.size() == 4);
  CHECK(overlapping.offset(3) == 6);
}

TEST_CASE("random windows begin at each byte once, by seed", "[data]") {
  auto const size = GENERATE(4, 5, 17, 64, 65, 1000);
  std::string const content(static_cast<std::size_t>(size), 'x');
  ByteText text(Text::of(content), {.length = 3, .windows = Windows::random, .seed = 1});
  ByteText other(Text::of(content), {.length = 3, .windows = Windows::random, .seed = 2});
  REQUIRE(text.size() == content.size() - 3);
  std::set<std::size_t> offsets;
  std::size_t same = 0, in_order = 0;
  for (std::size_t i = 0; i < *text.size(); ++i) {
    offsets.insert(text.offset(i));
    same += text.offset(i) == other.offset(i);
    in_order += i > 0 && text.offset(i) == text.offset(i - 1) + 1;
  }
  CHECK(offsets.size() == *text.size());
  CHECK(*offsets.rbegin() == *text.size() - 1);
  if (size == 1000) {
    CHECK(same < 20);
    CHECK(in_order < 20);
  }
}

TEST_CASE("a loader over bytes", "[data]") {
  weft::data::Loader loader(ByteText(Text::of("0123456789abc"), {.length = 3}), {.batch_size = 2});
  std::vector<std::string> seen;
  for (auto& batch : loader)
    for (std::int64_t i = 0; i < batch.data.size(0); ++i)
      seen.push_back(window(batch.data[i]) + ">" + window(batch.target[i]));
  CHECK(seen == std::vector<std::string>{"012>123", "345>456", "678>789", "9ab>abc"});
}

TEST_CASE("random windows come in another order in each epoch, on workers, too", "[data]") {
  auto const workers = GENERATE(0u, 2u);
  weft::data::Loader loader(
      ByteText(Text::of("0123456789abcdefghijkl"), {.length = 2, .windows = Windows::random, .seed = 3}),
      {.batch_size = 1, .workers = workers});
  std::vector<std::vector<std::string>> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto& windows = epochs.emplace_back();
    for (auto& batch : loader) windows.push_back(window(batch.data[0]));
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(std::set(epochs[0].begin(), epochs[0].end()).size() == 20);
  loader.set_epoch(0);
  std::vector<std::string> again;
  for (auto& batch : loader) again.push_back(window(batch.data[0]));
  CHECK(again == epochs[0]);
}

TEST_CASE("a vocabulary holds words by frequency, the unknown one first", "[data]") {
  using weft::data::Split;
  using weft::data::Vocabulary;
  auto const text = Text::of("the cat, the dog's cat; the \xc3\xa4pfel\n<unk> a\n");
  auto const words = [](Vocabulary const& vocabulary) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < vocabulary.size(); ++i) all.push_back(vocabulary.word(static_cast<std::int64_t>(i)));
    return all;
  };
  auto const all = Vocabulary::of(text);
  CHECK(words(all) ==
        std::vector<std::string>{"<unk>", "the", "cat", ",", ";", "<", ">", "a", "dog's", "unk", "\xc3\xa4pfel"});
  CHECK(all.number("cat") == 2);
  CHECK(all.number("bird") == Vocabulary::unknown);
  CHECK(all.encode("the bird,a") == std::vector<std::int32_t>{1, 0, 3, 7});
  CHECK(all.decode(std::vector<std::int32_t>{1, 0, 3}) == "the <unk> ,");
  CHECK(words(Vocabulary::of(text, {.most = 2})) == std::vector<std::string>{"<unk>", "the", "cat"});
  CHECK(words(Vocabulary::of(text, {.at_least = 2, .line_ends = true})) ==
        std::vector<std::string>{"<unk>", "the", "<eos>", "cat"});

  auto const spaces = Vocabulary::of(text, {.split = Split::spaces, .line_ends = true});
  CHECK(words(spaces) == std::vector<std::string>{"<unk>", "the", "<eos>", "a", "cat,", "cat;", "dog's",
                                                  "\xc3\xa4pfel"});  // a text's own <unk> is the unknown word
  CHECK(spaces.encode("the <unk>\n a") == std::vector<std::int32_t>{1, 0, 2, 3});
  CHECK(spaces.decode(spaces.encode("the cat,\n a \n")) == "the cat,\na\n");

  Folder const folder;
  auto const path = (folder.path / "vocabulary.txt").string();
  spaces.save(path);
  auto const loaded = Vocabulary::load(path);
  CHECK(loaded == spaces);
  CHECK(loaded.encode("cat; dog") == std::vector<std::int32_t>{5, 0});
  CHECK_FALSE(loaded == all);
  CHECK(Vocabulary::from_text(all.to_text()) == all);

  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(Vocabulary::load(folder.file("other.txt", "hello\n")),
                    ContainsSubstring("other.txt: is none: its first line is \"hello\""));
  CHECK_THROWS_WITH(Vocabulary::from_text("weft vocabulary 1: words\n"),
                    ContainsSubstring("the second line is not <unk>"));
  CHECK_THROWS_WITH(Vocabulary::from_text("weft vocabulary 1: words\n<unk>\na\na\n"),
                    ContainsSubstring("the word \"a\" twice"));
  CHECK_THROWS_AS(Vocabulary::from_text(""), weft::CheckpointError);
  CHECK_THROWS_WITH(all.word(11), ContainsSubstring("word 11 of 11"));
}

TEST_CASE("windows of words, with the next word as the target", "[data]") {
  using weft::data::Vocabulary;
  using weft::data::Words;
  auto const text = Text::of("a b c a b d a b e a", "letters");
  auto const vocabulary = Vocabulary::of(text, {.most = 3});
  Words const words(text, vocabulary);
  CHECK(words.size() == 10);
  CHECK(words.num_unknown() == 2);
  CHECK(std::abs(words.unigram_entropy() - Text::of("aaaabbbcee").unigram_entropy()) < 1e-12);
  weft::data::Loader loader(weft::data::WordText(words, {.length = 4, .stride = 5}), {.batch_size = 2});
  std::size_t batches = 0;
  for (auto& batch : loader) {
    CHECK(batch.data.equal(torch::tensor({{1, 2, 3, 1}, {0, 1, 2, 0}})));
    CHECK(batch.target.equal(torch::tensor({{2, 3, 1, 2}, {1, 2, 0, 1}})));
    ++batches;
  }
  CHECK(batches == 1);
  auto const [train, validation] = words.split(0.2);
  CHECK(train.size() == 8);
  CHECK(validation.data()[1] == 1);

  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(weft::data::WordText(validation, {.length = 2}),
                    ContainsSubstring("letters: 2 words are shorter than one window of 2 + 1 words"));
  CHECK_THROWS_WITH(words.split(2), ContainsSubstring("10 words cannot be split"));
  CHECK_THROWS_WITH(Words(Text::of(" \n"), vocabulary), ContainsSubstring("has no words"));
}

TEST_CASE("texts that cannot be used are refused with name and sizes", "[data]") {
  using Catch::Matchers::ContainsSubstring;
  Folder const folder;
  CHECK_THROWS_WITH(Text::read((folder.path / "none.txt").string()), ContainsSubstring("none.txt: No such file"));
  CHECK_THROWS_WITH(Text::read(folder.path.string()), ContainsSubstring("is a directory"));
  CHECK_THROWS_WITH(Text::read(folder.file("empty.txt", "")), ContainsSubstring("empty.txt: is empty"));
  CHECK_THROWS_AS(Text::read(""), weft::ConfigurationError);
  Text const text = Text::read(folder.file("short.txt", "abc"));
  CHECK_THROWS_WITH(ByteText(text, {.length = 3}),
                    ContainsSubstring("short.txt: 3 bytes are shorter than one window of 3 + 1 bytes"));
  CHECK_THROWS_WITH(ByteText(text, {.length = 0}), ContainsSubstring(".length = 0"));
  CHECK_THROWS_WITH(ByteText(text, {.length = 1, .stride = -1}), ContainsSubstring(".stride = -1"));
  CHECK_THROWS_WITH(text.split(0), ContainsSubstring("short.txt: 3 bytes cannot be split"));
  CHECK_THROWS_WITH(text.split(0.01), ContainsSubstring("cannot be split"));
  CHECK_THROWS_WITH(text.split(1.5), ContainsSubstring("cannot be split"));
  CHECK_THROWS_WITH(text.split(std::nan("")), ContainsSubstring("cannot be split"));
}
