// data/words.hpp -- a text's words as language-model batches.
// In: text, and a vocabulary that was built from text or loaded. Out: word numbers, as windows with the next words as
// targets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <weft/core/atomic_file.hpp>
#include <weft/core/error.hpp>
#include <weft/data/text.hpp>
#include <weft/data/windows.hpp>

namespace weft::inline v0::data {

// What a word is. words: letters, digits, apostrophes, underscores and all that is not ASCII belong together, other
// signs are words of their own. spaces: whatever stands between spaces, for text that is cut already.
enum class Split { words, spaces };

struct VocabularyOptions {
  std::size_t most = 0;      // words that are known, the most frequent ones; 0: all
  std::size_t at_least = 1;  // times that a word must occur to be known
  Split split = Split::words;
  bool line_ends = false;  // a word "<eos>" at each line's end
};

// Words and their numbers: 0 stands for every unknown word, then the known ones by falling frequency, and equally
// frequent ones in the order of their bytes. So all ranks that read one text have one vocabulary. Copies share it.
class Vocabulary {
 public:
  static constexpr std::int32_t unknown = 0;

  static Vocabulary of(Text const& text, VocabularyOptions const& options = {}) {
    std::unordered_map<std::string_view, std::size_t> counts;
    for_each_word(view(text), options.split, options.line_ends, [&counts](std::string_view word) { ++counts[word]; });
    counts.erase(unknown_word);
    std::erase_if(counts, [&options](auto const& one) { return one.second < options.at_least; });
    std::vector<std::pair<std::string_view, std::size_t>> ordered(counts.begin(), counts.end());
    std::sort(ordered.begin(), ordered.end(), [](auto const& a, auto const& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    if (options.most != 0 && ordered.size() > options.most) ordered.resize(options.most);
    std::vector<std::string> words{unknown_word};
    for (auto const& one : ordered) words.emplace_back(one.first);
    return Vocabulary(std::move(words), options.split, options.line_ends, text.name());
  }

  // A first line that says how text is cut, then a word a line, in the order of their numbers.
  std::string to_text() const {
    std::string text = std::string(heading) + (known_->split == Split::words ? "words" : "spaces") +
                       (known_->line_ends ? ", line ends\n" : "\n");
    for (auto const& word : known_->words) (text += word) += '\n';
    return text;
  }
  static Vocabulary from_text(std::string_view text, std::string const& name = "(text in memory)") {
    std::vector<std::string> lines;
    while (!text.empty()) {
      auto const end = std::min(text.find('\n'), text.size());
      lines.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    auto const first = lines.empty() ? std::string() : lines.front();
    for (auto const split : {Split::words, Split::spaces})
      for (bool const line_ends : {false, true})
        if (first ==
            std::string(heading) + (split == Split::words ? "words" : "spaces") + (line_ends ? ", line ends" : "")) {
          lines.erase(lines.begin());
          if (lines.empty() || lines.front() != unknown_word)
            fail<CheckpointError>("weft: vocabulary ", name, ": the second line is not ", unknown_word,
                                  ", the unknown word: the file is cut or was changed");
          return Vocabulary(std::move(lines), split, line_ends, name);
        }
    fail<CheckpointError>("weft: vocabulary ", name, ": is none: its first line is \"", first.substr(0, 60),
                          "\", not \"", heading, "words\"; Vocabulary::save writes one");
  }
  void save(std::string const& path) const {
    core::AtomicFile file(path);
    auto const text = to_text();
    file.write(text.data(), text.size());
    file.commit();
  }
  static Vocabulary load(std::string const& path) { return from_text(view(Text::read(path)), path); }

  std::size_t size() const { return known_->words.size(); }
  std::int32_t number(std::string_view word) const {
    auto const found = known_->numbers.find(word);
    return found == known_->numbers.end() ? unknown : found->second;
  }
  std::string const& word(std::int64_t number) const {
    if (number < 0 || static_cast<std::size_t>(number) >= size())
      fail<Error>("weft: vocabulary: word ", number, " of ", size());
    return known_->words[static_cast<std::size_t>(number)];
  }
  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> numbers;
    for_each_word(text, known_->split, known_->line_ends,
                  [&](std::string_view word) { numbers.push_back(number(word)); });
    return numbers;
  }
  // Words with spaces between them; lines end where they did.
  template <class Numbers>
  std::string decode(Numbers const& numbers) const {
    std::string text;
    for (auto const& number : numbers) {
      auto const& next = word(number);
      if (known_->line_ends && next == line_end)
        text += '\n';
      else
        (text += text.empty() || text.back() == '\n' ? "" : " ") += next;
    }
    return text;
  }
  bool operator==(Vocabulary const& other) const {
    return known_->words == other.known_->words && known_->split == other.known_->split &&
           known_->line_ends == other.known_->line_ends;
  }

  static std::string_view view(Text const& text) { return {reinterpret_cast<char const*>(text.data()), text.size()}; }

 private:
  static constexpr char const* unknown_word = "<unk>";
  static constexpr std::string_view line_end = "<eos>";
  static constexpr std::string_view heading = "weft vocabulary 1: ";

  struct Known {
    std::vector<std::string> words;
    std::unordered_map<std::string_view, std::int32_t> numbers;
    Split split;
    bool line_ends;
  };
  Vocabulary(std::vector<std::string> words, Split split, bool line_ends, std::string const& name) {
    auto known = std::make_shared<Known>(Known{std::move(words), {}, split, line_ends});
    for (auto const& word : known->words)
      if (!known->numbers.emplace(word, static_cast<std::int32_t>(known->numbers.size())).second)
        fail<CheckpointError>("weft: vocabulary ", name, ": has the word \"", word, "\" twice: the file was changed");
    known_ = std::move(known);
  }

  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '\'' ||
           static_cast<unsigned char>(c) >= 128;
  }
  template <class F>
  static void for_each_word(std::string_view text, Split split, bool line_ends, F f) {
    for (std::size_t i = 0; i < text.size();) {
      std::size_t end = i + 1;
      if (is_space(text[i])) {
        if (line_ends && text[i] == '\n') f(line_end);
      } else {
        if (split == Split::spaces)
          while (end < text.size() && !is_space(text[end])) ++end;
        else if (is_letter(text[i]))
          while (end < text.size() && is_letter(text[end])) ++end;
        f(text.substr(i, end - i));
      }
      i = end;
    }
  }

  std::shared_ptr<Known const> known_;
};

// A text's words as numbers. Copies share them.
class Words {
 public:
  static constexpr char const* unit = "words";

  Words(Text const& text, Vocabulary const& vocabulary)
      : name_(text.name()),
        numbers_(std::make_shared<std::vector<std::int32_t> const>(vocabulary.encode(Vocabulary::view(text)))),
        end_(numbers_->size()) {
    if (end_ == 0) fail<ConfigurationError>("weft: text file ", name_, ": has no words");
  }

  // The text without its end, and the end.
  std::pair<Words, Words> split(double fraction_at_end) const {
    std::size_t const cut = end_ - detail::tokens_at_end(fraction_at_end, size(), name_, unit);
    auto first = *this, second = *this;
    first.end_ = second.begin_ = cut;
    return {first, second};
  }
  std::string const& name() const { return name_; }
  std::size_t size() const { return end_ - begin_; }
  std::int32_t const* data() const { return numbers_->data() + begin_; }
  // In nats per word.
  double unigram_entropy() const {
    std::vector<std::size_t> counts(static_cast<std::size_t>(*std::max_element(data(), data() + size())) + 1);
    for (std::size_t i = 0; i < size(); ++i) ++counts[static_cast<std::size_t>(data()[i])];
    return detail::entropy_of(counts);
  }
  // How many of the words the vocabulary does not know.
  std::size_t num_unknown() const {
    return static_cast<std::size_t>(std::count(data(), data() + size(), Vocabulary::unknown));
  }

 private:
  std::string name_;
  std::shared_ptr<std::vector<std::int32_t> const> numbers_;
  std::size_t begin_ = 0;
  std::size_t end_;
};

using WordText = NextToken<Words>;

}  // namespace weft::data
