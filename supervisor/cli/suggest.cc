#include "supervisor/cli/suggest.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Levenshtein's: letters to insert, remove or replace.
size_t Distance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string Nearest(const std::string& typed, const std::vector<std::string>& known) {
  const std::string wanted = absl::AsciiStrToLower(typed);
  const size_t far = std::max<size_t>(2, wanted.size() / 3) + 1;
  std::string nearest;
  size_t least = far;
  for (const std::string& candidate : known) {
    const std::string name = absl::AsciiStrToLower(candidate);
    // One that was typed in part is nearer than any that was typed wrong.
    size_t distance = Distance(wanted, name);
    if (wanted.size() >= 2 && name.starts_with(wanted)) distance = 0;
    // Two words that have nothing in common are not each other's misspelling.
    if (distance >= std::max(wanted.size(), name.size())) continue;
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(typed, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?");
}

}  // namespace baton
