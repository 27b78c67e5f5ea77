#include "tests/simulation/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::simulation {

void Context::Note(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  ring_[noted_++ % kKept] = {what, now_ns, a, b, c};
  const auto mix = [this](uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9e37'79b9'7f4a'7c15;
    hash_ ^= hash_ >> 29;
  };
  // Letters, not the address: the same in every process.
  for (const char* letter = what; *letter != '\0'; ++letter) {
    hash_ = (hash_ ^ static_cast<uint8_t>(*letter)) * 0x100'0000'01b3;
  }
  mix(a);
  mix(b);
  mix(c);
}

std::string Context::Last(size_t count) const {
  std::string text;
  for (uint64_t i = noted_ - std::min<uint64_t>({count, kKept, noted_}); i < noted_; ++i) {
    const Noted& noted = ring_[i % kKept];
    absl::StrAppend(&text, "  ", noted.now_ns / 1000, " ", noted.what, " ", noted.a, " ", noted.b,
                    " ", noted.c, "\n");
  }
  return text;
}

void Context::Break(std::string what) {
  if (broken()) return;
  Note("BROKEN");
  broken_ = std::move(what);
}

}  // namespace baton::simulation
