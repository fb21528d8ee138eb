// data/words.ipp -- definitions of data/words.hpp.
#pragma once

#include <weft/data/words.hpp>

#include <weft/core/atomic_file.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::data {

WEFT_INLINE Vocabulary Vocabulary::of(Text const& text, VocabularyOptions const& options) {
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

WEFT_INLINE std::string Vocabulary::to_text() const {
  std::string text = std::string(heading) + (known_->split == Split::words ? "words" : "spaces") +
                     (known_->line_ends ? ", line ends\n" : "\n");
  for (auto const& word : known_->words) (text += word) += '\n';
  return text;
}

WEFT_INLINE Vocabulary Vocabulary::from_text(std::string_view text, std::string const& name) {
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
  fail<CheckpointError>("weft: vocabulary ", name, ": is none: its first line is \"", first.substr(0, 60), "\", not \"",
                        heading, "words\"; Vocabulary::save writes one");
}

WEFT_INLINE void Vocabulary::save(std::string const& path) const {
  core::AtomicFile file(path);
  auto const text = to_text();
  file.write(text.data(), text.size());
  file.commit();
}

WEFT_INLINE std::string const& Vocabulary::word(std::int64_t number) const {
  if (number < 0 || static_cast<std::size_t>(number) >= size())
    fail<Error>("weft: vocabulary: word ", number, " of ", size());
  return known_->words[static_cast<std::size_t>(number)];
}

WEFT_INLINE std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> numbers;
  for_each_word(text, known_->split, known_->line_ends,
                [&](std::string_view word) { numbers.push_back(number(word)); });
  return numbers;
}

WEFT_INLINE Vocabulary::Vocabulary(std::vector<std::string> words, Split split, bool line_ends,
                                   std::string const& name) {
  auto known = std::make_shared<Known>(Known{std::move(words), {}, split, line_ends});
  for (auto const& word : known->words)
    if (!known->numbers.emplace(word, static_cast<std::int32_t>(known->numbers.size())).second)
      fail<CheckpointError>("weft: vocabulary ", name, ": has the word \"", word, "\" twice: the file was changed");
  known_ = std::move(known);
}

WEFT_INLINE bool Vocabulary::is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '\'' ||
         static_cast<unsigned char>(c) >= 128;
}

WEFT_INLINE Words::Words(Text const& text, Vocabulary const& vocabulary)
    : name_(text.name()),
      numbers_(std::make_shared<std::vector<std::int32_t> const>(vocabulary.encode(Vocabulary::view(text)))),
      end_(numbers_->size()) {
  if (end_ == 0) fail<ConfigurationError>("weft: text file ", name_, ": has no words");
}

WEFT_INLINE std::pair<Words, Words> Words::split(double fraction_at_end) const {
  std::size_t const cut = end_ - detail::tokens_at_end(fraction_at_end, size(), name_, unit);
  auto first = *this, second = *this;
  first.end_ = second.begin_ = cut;
  return {first, second};
}

WEFT_INLINE double Words::unigram_entropy() const {
  std::vector<std::size_t> counts(static_cast<std::size_t>(*std::max_element(data(), data() + size())) + 1);
  for (std::size_t i = 0; i < size(); ++i) ++counts[static_cast<std::size_t>(data()[i])];
  return detail::entropy_of(counts);
}

}  // namespace weft::data
