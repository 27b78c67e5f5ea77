// The page: its template with the results and the timelines in it.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/demo/report.h"
#include "tests/demo/timeline.h"

namespace baton::demo {

// The text of page_template.html, which the build turns into a source.
extern const char kPageTemplate[];

namespace {

using nlohmann::ordered_json;

std::string EscapeHtml(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

double SecondsSince(uint64_t start_us, uint64_t us) {
  return (static_cast<double>(us) - static_cast<double>(start_us)) * 1e-6;
}

ordered_json EventsJson(const ActResult& act) {
  ordered_json events = ordered_json::array();
  for (const Event& event : act.events) {
    if (event.kind == EventKind::kQuiet || event.kind == EventKind::kUpgradeStart) continue;
    events.push_back({{"kind", EventKindName(event.kind)},
                      {"seconds", SecondsSince(act.start_us, event.monotonic_us)},
                      {"blackout_us", event.silence_us},
                      {"problem", event.problem}});
  }
  return events;
}

ordered_json ActJson(const ActResult& act, const std::string& title,
                     const std::vector<Bucket>& buckets) {
  ordered_json replies = ordered_json::array(), silences = ordered_json::array();
  for (const Bucket& bucket : buckets) {
    replies.push_back(bucket.replies);
    silences.push_back(bucket.silence_us);
  }
  return {{"title", title},
          {"first_seconds", SecondsSince(act.start_us, buckets.front().start_us)},
          {"bucket_seconds", Bucket::kMicroseconds * 1e-6},
          {"events", EventsJson(act)},
          {"replies", std::move(replies)},
          {"silence_us", std::move(silences)}};
}

ordered_json KindsJson() {
  ordered_json kinds;
  for (int i = 0; i <= static_cast<int>(EventKind::kStandbyCrash); ++i) {
    const EventLook& look = LookOf(static_cast<EventKind>(i));
    kinds[look.name] = {{"title", look.title}, {"colour", look.colour}};
  }
  return kinds;
}

// Acts that have no timeline are left out: they failed, and the table says so.
std::string DataJson(const DemoResult& result, const std::string& directory) {
  ordered_json acts = ordered_json::array();
  const std::tuple<const ActResult*, const char*, const char*> all[] = {
      {&result.baton, "With Baton", kBatonTimeline},
      {&result.standby, "Without Baton: each client has a second connection, to a warm standby",
       kStandbyTimeline},
      {&result.baseline, "Without Baton: clients reconnect, to a warm successor",
       kBaselineTimeline}};
  for (const auto& [act, title, file] : all) {
    const auto buckets = ReadTimeline(absl::StrCat(directory, "/", file));
    if (buckets.ok()) acts.push_back(ActJson(*act, title, *buckets));
  }
  const ordered_json data = {{"result", ordered_json::parse(ToJson(result))},
                             {"kinds", KindsJson()},
                             {"acts", std::move(acts)}};
  return data.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string ToPage(const DemoResult& result, const std::string& directory) {
  // In JSON, "<" is part of strings alone: none of them ends the script that it is in.
  return absl::StrReplaceAll(
      kPageTemplate,
      {{"{{SENTENCE}}", EscapeHtml(ToSentence(result))},
       {"{{TABLE}}", EscapeHtml(ToTable(result))},
       {"{{DATA}}", absl::StrReplaceAll(DataJson(result, directory), {{"<", "\\u003c"}})}});
}

absl::Status WritePage(const DemoResult& result, const std::string& directory) {
  const std::string path = directory + "/demo.html";
  std::ofstream out(path);
  out << ToPage(result, directory);
  out.close();
  if (out) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + path);
}

}  // namespace baton::demo
