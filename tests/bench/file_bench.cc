#include "tests/bench/file_bench.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/bench_file.h"

namespace baton::bench {
namespace {

constexpr uint64_t kSmallest = 4096;
constexpr double kSeconds = 0.2;  // of sending one size in one way, at least
// The ways take so many turns with each size. A machine that is faster now than a second ago is as
// fast for all of them then.
constexpr uint32_t kTurns = 5;
constexpr uint64_t kMostToWarm = 1 << 20;  // smaller ones are sent once before
constexpr std::array<uint32_t, 3> kPipes = {1, 2, 6};
constexpr std::array<uint32_t, 3> kPages = {16, 64, 256};
constexpr char kStatic[] = "static", kCheckedStatic[] = "static_checked";

// SendFile takes at most so much of the static copy's registered memory...
constexpr double kMemoryBar = 0.1;
// ...at the same throughput. In an emulated machine ratios are good for a twentieth at best.
constexpr double kThroughputBar = 0.95;

std::string PipesName(uint32_t pipes, uint32_t pages) {
  return absl::StrCat("pipes_", pipes, "x", pages);
}

std::string SizeName(uint64_t bytes) {
  return bytes >= 1 << 20 ? absl::StrCat(bytes >> 20, "MiB") : absl::StrCat(bytes >> 10, "KiB");
}

std::string FigureOf(const std::string& way, uint64_t bytes) {
  return absl::StrCat("file_", way, "_", SizeName(bytes));
}
std::string RegisteredOf(const std::string& way, uint64_t bytes) {
  return FigureOf(way, bytes) + "_registered";
}

bool IsSendFile(const std::string& way) { return way.rfind("sendfile", 0) == 0; }
bool IsChecked(const std::string& way) { return way.find("_checked") != std::string::npos; }
bool IsPipelined(const std::string& way) { return way.rfind("pipes", 0) == 0; }

}  // namespace

FileBench::FileBench(const FileBenchOptions& options, Suite* suite)
    : options_(options), suite_(*suite) {
  for (uint64_t bytes = kSmallest; bytes <= options_.largest_bytes; bytes *= 4) {
    sizes_.push_back(bytes);
  }
  if (options_.plain) AddPlainWays();
  AddBatonWays("brokered", &brokered_);
  AddBatonWays("native", &native_);
  Compare();
  Draw();
}

void FileBench::AddPlainWays() {
  for (const bool checks : {false, true}) {
    ways_.push_back({checks ? kCheckedStatic : kStatic, [this, checks](SentFile file) {
                       return MakeStaticCopy(link_.get(), file, checks);
                     }});
  }
  for (const bool keeps : {false, true}) {
    ways_.push_back({keeps ? "cached" : "dynamic", [this, keeps](SentFile file) {
                       return MakeInPlace(link_.get(), file, keeps);
                     }});
  }
  for (const uint32_t pipes : kPipes) {
    for (const uint32_t pages : kPages) {
      ways_.push_back({PipesName(pipes, pages), [this, pipes, pages](SentFile file) {
                         return MakePipelined(link_.get(), file, pipes, pages);
                       }});
    }
  }
}

void FileBench::AddBatonWays(const char* kind, std::unique_ptr<BatonFiles>* files) {
  const auto add = [&](const char* name, SendWay way) {
    ways_.push_back({absl::StrCat(name, "_", kind), [files, way](SentFile file) {
                       return MakeBatonWay(files->get(), way, file.bytes);
                     }});
  };
  if (options_.send_file) {
    add("sendfile", SendWay::kSendFile);
    add("sendfile_checked", SendWay::kSendChecked);
  }
  if (!options_.regions) return;
  add("dynamic", SendWay::kDynamicRegion);
  add("cached", SendWay::kCachedRegion);
}

void FileBench::Compare() {
  if (!options_.plain) return;
  const uint64_t bytes = sizes_.back();
  for (const Way& way : ways_) {
    if (way.name == kStatic || way.name == kCheckedStatic) continue;
    const std::string base = IsChecked(way.name) ? kCheckedStatic : kStatic;
    const std::string figure = FigureOf(way.name, bytes);
    suite_.Compare({absl::StrCat(figure, "_to_", base), figure, FigureOf(base, bytes),
                    Better::kMore,
                    IsSendFile(way.name) && !IsChecked(way.name) ? kThroughputBar : 0});
    const std::string registered = RegisteredOf(way.name, bytes);
    suite_.Compare({absl::StrCat(registered, "_to_", base), registered, RegisteredOf(base, bytes),
                    Better::kLess, IsSendFile(way.name) ? kMemoryBar : 0});
  }
}

void FileBench::Draw() {
  Plot files{"files", "To send a file", "bytes", "MB/s", {}};
  Plot pages{"pages", "To send a file from its own pages", "bytes", "MB/s", {}};
  Plot pipes{"pipes", "To send a file through pipes x pages", "bytes", "MB/s", {}};
  Plot registered{"registered", "Registered to send a file", "bytes", "bytes", {}};
  for (const Way& way : ways_) {
    const std::string title = absl::StrReplaceAll(way.name, {{"_", " "}});
    Line speed{title, {}}, memory{title, {}};
    for (const uint64_t bytes : sizes_) {
      speed.points.emplace_back(bytes, FigureOf(way.name, bytes));
      memory.points.emplace_back(bytes, RegisteredOf(way.name, bytes));
    }
    // Ways that others are compared with are in several.
    const bool is_pipe = IsPipelined(way.name), is_send_file = IsSendFile(way.name);
    const bool is_extreme = way.name == PipesName(kPipes.front(), kPages.front()) ||
                            way.name == PipesName(kPipes.back(), kPages.back());
    const bool is_plain = way.name.find('_') == std::string::npos;
    if (is_pipe || is_send_file) pipes.lines.push_back(speed);
    if (!is_pipe && !is_send_file) pages.lines.push_back(speed);
    if (is_plain || is_extreme || is_send_file) files.lines.push_back(std::move(speed));
    registered.lines.push_back(std::move(memory));
  }
  for (Plot* plot : {&files, &pages, &pipes, &registered}) suite_.Draw(std::move(*plot));
}

absl::Status FileBench::Start() {
  BATON_ASSIGN_OR_RETURN(file_, MakeFile(sizes_.back()));
  if (options_.send_file || options_.regions) {
    BATON_ASSIGN_OR_RETURN(brokered_, BatonFiles::Start(SideName::kBrokered, options_.fabric,
                                                        options_.binary_directory));
    BATON_ASSIGN_OR_RETURN(
        native_, BatonFiles::Start(SideName::kNative, options_.fabric, options_.binary_directory));
  }
  if (options_.plain) {
    BATON_ASSIGN_OR_RETURN(link_, FileLink::Start(options_.fabric, sizes_.back()));
  }
  return absl::OkStatus();
}

absl::Status FileBench::Measure(Round& round) {
  for (const uint64_t bytes : sizes_) BATON_RETURN_IF_ERROR(MeasureSize(bytes, round));
  return absl::OkStatus();
}

absl::Status FileBench::MeasureSize(uint64_t bytes, Round& round) {
  std::vector<Sent> sent(ways_.size());
  for (size_t i = 0; i < ways_.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(sent[i].way, ways_[i].make({file_.get(), bytes}));
    if (bytes <= kMostToWarm) BATON_RETURN_IF_ERROR(sent[i].way->Send());
  }
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < ways_.size(); ++i) {
      const size_t next = (i + turn + round.number()) % ways_.size();  // none always first
      BATON_RETURN_IF_ERROR(TakeTurn(bytes, &sent[next]));
    }
  }
  for (size_t i = 0; i < ways_.size(); ++i) {
    BATON_RETURN_IF_ERROR(sent[i].way->SendAndCheck());
    round.Set(FigureOf(ways_[i].name, bytes), sent[i].bytes / sent[i].took_ns * 1e3, "MB/s");
    round.Set(RegisteredOf(ways_[i].name, bytes),
              static_cast<double>(sent[i].way->registered_bytes()), "B");
  }
  return absl::OkStatus();
}

absl::Status FileBench::TakeTurn(uint64_t bytes, Sent* sent) {
  const double wanted_ns = kSeconds / kTurns * suite_.options().scale * 1e9;
  const uint64_t began = MonotonicNanoseconds();
  double took_ns = 0;
  do {
    BATON_RETURN_IF_ERROR(sent->way->Send());
    sent->bytes += static_cast<double>(bytes);
    took_ns = static_cast<double>(MonotonicNanoseconds() - began);
  } while (took_ns < wanted_ns);
  sent->took_ns += took_ns;
  return absl::OkStatus();
}

void FileBench::DumpLogs() const {
  for (const auto* files : {&brokered_, &native_}) {
    if (*files != nullptr) (*files)->DumpLogs();
  }
}

}  // namespace baton::bench
