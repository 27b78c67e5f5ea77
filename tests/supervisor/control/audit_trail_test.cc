#include "supervisor/control/audit_trail.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/clock.h"
#include "supervisor/config/audit_chain.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class AuditTrailTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) / "audit_trail_test";
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    Open();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Opens the trail as a control does that was started anew.
  void Open(uint64_t max_file_bytes = AuditTrail::kMaxFileBytes) {
    trail_.reset();
    events_ = std::make_unique<EventLog>();
    trail_ = std::make_unique<AuditTrail>(Path(), events_.get(), max_file_bytes,
                                          [this] { return clock_(); });
  }
  std::string Path() const { return directory_ / "audit.log"; }

  v1::Change Begin(const std::string& what) {
    v1::Change change;
    change.set_who("uid 0 pid 12");
    change.set_what(what);
    change.set_why("\"quoted\" \xc3\xa9");
    change.set_request("{\"service\":\"kv\"}");
    trail_->Begin("kv", &change);
    return change;
  }
  void Do(const std::string& what, const absl::Status& outcome = absl::OkStatus()) {
    trail_->End("kv", Begin(what), outcome);
  }

  std::vector<v1::Event> Logged(const EventFilter& filter = {.service = "", .changes = true}) {
    std::vector<v1::Event> events;
    const auto follower = events_->Follow(filter, [] {});
    while (SharedEvent event = follower->Pop()) events.push_back(*event);
    return events;
  }
  std::vector<std::string> Told() {
    std::vector<std::string> told;
    for (const v1::Event& event : Logged()) {
      const v1::Change& change = event.change();
      told.push_back(absl::StrCat(change.number(), " ", change.what(), " ",
                                  change.done() ? change.outcome() : "begins"));
    }
    return told;
  }

  std::filesystem::path directory_;
  std::function<int64_t()> clock_ = UnixMicroseconds;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<AuditTrail> trail_;
};

TEST_F(AuditTrailTest, shouldHaveTheTimesOfTheClockWhenThatIsSteppedBack) {
  const int64_t right = UnixMicroseconds();
  int64_t shown = right + 86'400'000'000;  // a day too far
  clock_ = [&shown] { return shown; };
  Do("Handoff");
  shown = right;
  Do("Drain");
  shown = right + 10;
  Open();
  Do("Stop");
  std::vector<int64_t> times;
  for (const v1::Event& event : Logged()) times.push_back(event.unix_micros() - right);
  // A clock that stands still gives no two records one time.
  EXPECT_THAT(times, UnorderedElementsAre(86'400'000'000, 86'400'000'001, 0, 1, 10, 11));
}

TEST_F(AuditTrailTest, shouldTellOfAChangeBeforeAndAfterIt) {
  const v1::Change change = Begin("Handoff");
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins"));
  trail_->End("kv", change, absl::NotFoundError("no worker 7"));
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins", "1 Handoff NOT_FOUND: no worker 7"));
  const v1::Event event = Logged().back();
  EXPECT_EQ(event.kind(), "change");
  EXPECT_EQ(event.service(), "kv");
  EXPECT_EQ(event.sequence(), 0u);
  EXPECT_EQ(event.message(),
            "1: Handoff asked by uid 0 pid 12 (\"quoted\" \xc3\xa9): NOT_FOUND: no worker 7");
  EXPECT_EQ(event.change().request(), "{\"service\":\"kv\"}");
}

TEST_F(AuditTrailTest, shouldSurviveRestartsAndGoOnCounting) {
  Do("Handoff");
  Begin("Upgrade");  // control ended in the middle of it
  Open();
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins", "1 Handoff OK", "2 Upgrade begins"));
  EXPECT_EQ(Logged()[1].change().why(), "\"quoted\" \xc3\xa9");
  Do("Rollback");
  Open();
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins", "1 Handoff OK", "2 Upgrade begins",
                                  "3 Rollback begins", "3 Rollback OK"));
}

TEST_F(AuditTrailTest, shouldGoOnBehindALineThatWasNotFinished) {
  Do("Handoff");
  trail_.reset();
  std::ofstream(Path(), std::ios::app) << "{\"service\":\"kv\",\"chan";
  Open();
  Do("Rollback");
  Open();
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins", "1 Handoff OK", "2 Rollback begins",
                                  "2 Rollback OK"));
}

TEST_F(AuditTrailTest, shouldKeepSixteenFilesAndNoMore) {
  constexpr uint64_t kBytes = 4096;
  Open(kBytes);
  for (int i = 0; i < 200; ++i) Do("Handoff");
  Open(kBytes);
  EXPECT_LE(std::filesystem::file_size(Path()), kBytes);
  EXPECT_LE(std::filesystem::file_size(Path() + ".1"), kBytes);
  size_t files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory_)) ++files;
  EXPECT_EQ(files, 16u);
  const std::vector<v1::Event> left = Logged();
  ASSERT_GT(left.size(), 5u);
  EXPECT_EQ(left.back().change().number(), 200u);
  for (size_t i = 1; i < left.size(); ++i) {
    EXPECT_LT(left[i - 1].unix_micros(), left[i].unix_micros());
  }
}

TEST_F(AuditTrailTest, shouldLeaveNoHalfALineWhereTheDiskIsFull) {
  Do("Handoff");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = std::filesystem::file_size(Path()) + 50;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_EQ(trail_->failed_writes(), 0u);
  Do("Upgrade");
  EXPECT_EQ(trail_->failed_writes(), 2u);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  Do("Rollback");
  Open();
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins", "1 Handoff OK", "3 Rollback begins",
                                  "3 Rollback OK"));
}

TEST_F(AuditTrailTest, shouldRecordAgainOnceItCan) {
  const std::string file = Path();
  std::filesystem::remove_all(directory_);
  Open();
  Do("Handoff");
  EXPECT_EQ(trail_->failed_writes(), 2u);
  std::filesystem::create_directory(directory_);
  Do("Rollback");
  EXPECT_EQ(trail_->failed_writes(), 2u);
  Open();
  EXPECT_EQ(Told().back(), "2 Rollback OK");
}

TEST_F(AuditTrailTest, shouldBeForItsUserAlone) {
  struct stat status = {};
  ASSERT_EQ(stat(Path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

// Operators in trouble need their commands more than the record of them.
TEST_F(AuditTrailTest, shouldTellOfChangesWhereNoFileCanBe) {
  std::filesystem::remove_all(directory_);
  Open();
  Do("Handoff");
  EXPECT_THAT(Told(), ElementsAre("1 Handoff begins", "1 Handoff OK"));
}

TEST_F(AuditTrailTest, shouldNotBeWashedAwayByEvents) {
  Do("Handoff");
  for (uint64_t i = 1; i <= 5000; ++i) {
    v1::Event event;
    event.set_sequence(i);
    events_->Append("kv", event);
  }
  EXPECT_EQ(Told().size(), 2u);
  // With the others, in the order of time: these have none.
  const std::vector<v1::Event> all = Logged({.service = "kv", .changes = false});
  EXPECT_EQ(all.size(), 4096u + 2u);
  EXPECT_TRUE(all.back().has_change());
}

class AuditChainTest : public AuditTrailTest {
 protected:
  absl::StatusOr<AuditReport> Verify(const std::string& expected = "") {
    return VerifyAuditFiles(Path(), expected);
  }
  std::vector<std::string> Lines() const {
    std::ifstream file(Path());
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  void Rewrite(const std::vector<std::string>& lines) {
    std::ofstream file(Path());
    for (const std::string& line : lines) file << line << "\n";
  }
};

TEST_F(AuditChainTest, shouldHoldOverRestartsAndFiles) {
  Open(4096);
  for (int i = 0; i < 10; ++i) Do("Handoff");
  Open(4096);
  for (int i = 0; i < 10; ++i) Do("Upgrade");
  const auto report = Verify();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->records, 40u);
  EXPECT_GT(report->files, 2);
  EXPECT_EQ(report->last_hash, AuditHashOf(Lines().back()));
  // The oldest files are gone one day.
  for (int i = 0; i < 200; ++i) Do("Handoff");
  EXPECT_TRUE(Verify().ok());
}

TEST_F(AuditChainTest, shouldBreakWithALineThatWasChangedTakenOutOrAdded) {
  for (int i = 0; i < 3; ++i) Do("Handoff");
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 6u);
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    std::vector<std::string> changed = lines;
    changed[i].replace(changed[i].find("uid 0"), 5, "uid 7");
    Rewrite(changed);
    EXPECT_EQ(Verify().status().code(), absl::StatusCode::kDataLoss) << i;
    std::vector<std::string> without = lines;
    without.erase(without.begin() + static_cast<long>(i));
    Rewrite(without);
    EXPECT_EQ(Verify().status().code(), absl::StatusCode::kDataLoss) << i;
    std::vector<std::string> more = lines;
    more.insert(more.begin() + static_cast<long>(i), "{\"service\":\"kv\",\"kind\":\"change\"}");
    Rewrite(more);
    EXPECT_EQ(Verify().status().code(), absl::StatusCode::kDataLoss) << i;
  }
  Rewrite(lines);
  EXPECT_TRUE(Verify().ok());
}

TEST_F(AuditChainTest, shouldMissAHashThatWasNotedElsewhereOnceTheEndIsCutOff) {
  for (int i = 0; i < 3; ++i) Do("Handoff");
  std::vector<std::string> lines = Lines();
  const std::string noted(AuditHashOf(lines.back()));
  EXPECT_TRUE(Verify(noted)->expected_found);
  lines.pop_back();
  Rewrite(lines);
  EXPECT_FALSE(Verify(noted)->expected_found);
}

TEST_F(AuditChainTest, shouldGoOnBehindALineThatWasNotFinishedAndBehindAnOlderReleases) {
  trail_.reset();
  Rewrite(
      {"{\"service\":\"kv\",\"unix_micros\":\"5\",\"kind\":\"change\",\"change\":{\"number\":\"7\"}"
       "}"});
  Open();
  Do("Handoff");
  trail_.reset();
  std::ofstream(Path(), std::ios::app) << "{\"service\":\"kv\",\"chan";
  Open();
  Do("Rollback");
  EXPECT_EQ(Told().back(), "9 Rollback OK");
  const auto report = Verify();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->unchained, 1u);
  EXPECT_EQ(report->torn, 1u);
  EXPECT_EQ(report->records, 4u);
}

TEST_F(AuditChainTest, shouldSayWhichFileIsMissing) {
  Open(4096);
  for (int i = 0; i < 20; ++i) Do("Handoff");
  std::filesystem::remove(Path() + ".1");
  const absl::Status missing = Verify().status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), testing::HasSubstr("audit.log.1"));
}

}  // namespace
}  // namespace baton
