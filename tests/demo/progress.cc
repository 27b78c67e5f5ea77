#include "tests/demo/progress.h"

#include <cstdio>
#include <optional>

namespace baton::demo {
namespace {

class PlainProgress final : public Progress {
 public:
  void BeginAct(const std::string& title, bool, const std::string&) override {
    std::fprintf(stderr, "%s:\n", title.c_str());
    kind_.reset();
  }
  void EndAct(const Counters&) override {}
  void Begin(EventKind kind) override {
    if (kind_ != kind) std::fprintf(stderr, " %s:\n", EventTitle(kind));
    kind_ = kind;
  }
  void End(const Event& event) override {
    std::fprintf(stderr, "  %-13s %9.0f us  %s\n", EventKindName(event.kind), event.blackout_us,
                 event.problem.empty() ? "ok" : event.problem.c_str());
  }
  void Note(const std::string& line) override { std::fprintf(stderr, "%s\n", line.c_str()); }
  void Yield() override {}

 private:
  std::optional<EventKind> kind_;
};

}  // namespace

std::unique_ptr<Progress> MakePlainProgress() { return std::make_unique<PlainProgress>(); }

}  // namespace baton::demo
