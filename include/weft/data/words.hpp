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

  static Vocabulary of(Text const& text, VocabularyOptions const& options = {});

  // A first line that says how text is cut, then a word a line, in the order of their numbers.
  std::string to_text() const;
  static Vocabulary from_text(std::string_view text, std::string const& name = "(text in memory)");
  void save(std::string const& path) const;
  static Vocabulary load(std::string const& path) { return from_text(view(Text::read(path)), path); }

  std::size_t size() const { return known_->words.size(); }
  std::int32_t number(std::string_view word) const {
    auto const found = known_->numbers.find(word);
    return found == known_->numbers.end() ? unknown : found->second;
  }
  std::string const& word(std::int64_t number) const;
  std::vector<std::int32_t> encode(std::string_view text) const;
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
  Vocabulary(std::vector<std::string> words, Split split, bool line_ends, std::string const& name);

  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  static bool is_letter(char c);
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

  Words(Text const& text, Vocabulary const& vocabulary);

  // The text without its end, and the end.
  std::pair<Words, Words> split(double fraction_at_end) const;
  std::string const& name() const { return name_; }
  std::size_t size() const { return end_ - begin_; }
  std::int32_t const* data() const { return numbers_->data() + begin_; }
  // In nats per word.
  double unigram_entropy() const;
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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/words.ipp>
#endif
