#include "supervisor/cli/help.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "supervisor/cli/description.h"
#include "supervisor/cli/wrap.h"

namespace baton {
namespace {

constexpr size_t kColumns = 80;
constexpr char kNoBreak[] = "\x01";
constexpr size_t kWidestLabel = 30;  // wider ones have their description below
constexpr char kExitCodes[] =
    "Exit: 1 failed, 2 usage, 3 Baton unreachable, 4 not found, 5 denied, 6 timed out";
constexpr char kExitCodesInShort[] =
    "Exit codes: 0 ok, 1 failed, 2 bad usage, and others: see `baton --help`.";

std::string Paragraph(const std::string& text) { return Wrap(text, 0, 0, kColumns) + "\n"; }

using Rows = std::vector<std::pair<std::string, std::string>>;  // label, description

std::string Columns(const Rows& rows) {
  size_t width = 0;
  for (const auto& [label, description] : rows) {
    if (label.size() <= kWidestLabel) width = std::max(width, label.size());
  }
  const size_t indent = width + 4;
  std::string text;
  for (const auto& [label, description] : rows) {
    absl::StrAppend(&text, "  ", label);
    const size_t column = label.size() + 2;
    const bool below = column + 2 > indent;
    absl::StrAppend(&text, below ? "\n" : "", std::string(below ? indent : indent - column, ' '),
                    Wrap(description, indent, indent, kColumns), "\n");
  }
  return text;
}

const CLI::App& RootOf(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : RootOf(*app.get_parent());
}

// Those that every command has, in a row; baton(1) describes them.
std::string CommonOptions(const CLI::App& root, bool of_root) {
  std::vector<std::string> all;
  for (const CLI::Option* option : OptionsOf(root)) {
    if (!of_root && option->get_items_expected_max() == 0) continue;  // --version
    if (option->get_group() == kOverTls) continue;
    // A label stays on its line.
    all.push_back(absl::StrReplaceAll(LabelOf(*option), {{" ", kNoBreak}}));
  }
  return absl::StrReplaceAll(Paragraph(absl::StrCat(of_root ? "Options of all: " : "Also: ",
                                                    absl::StrJoin(all, ", "), ".")),
                             {{kNoBreak, " "}});
}

}  // namespace

std::string Help::make_help(const CLI::App* app, std::string /*name*/,
                            CLI::AppFormatMode /*mode*/) const {
  const bool is_root = app->get_parent() == nullptr;
  const std::string usage = absl::StrCat("Usage: ", UsageOf(*app));
  std::string text = is_root ? Paragraph(absl::StrCat(usage, "; ", app->get_description()))
                             : Paragraph(usage) + Paragraph(app->get_description());
  Rows rows;
  for (const CLI::App* one : SubcommandsOf(*app)) {
    rows.emplace_back(one->get_name(), InShort(one->get_description()));
  }
  for (const CLI::Option* one : PositionalsOf(*app)) {
    rows.emplace_back(NameOf(*one), DescriptionOf(*one));
  }
  if (!is_root) {
    for (const CLI::Option* one : OptionsOf(*app)) {
      rows.emplace_back(LabelOf(*one), DescriptionOf(*one));
    }
  }
  absl::StrAppend(&text, Columns(rows));
  const std::string footer = app->get_footer();
  if (!footer.empty()) absl::StrAppend(&text, Paragraph(footer));
  absl::StrAppend(&text, CommonOptions(RootOf(*app), is_root),
                  Paragraph(is_root ? kExitCodes : kExitCodesInShort));
  return text;
}

}  // namespace baton
