#include "supervisor/driver/host_twin.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {
namespace {

// Each test runs in a process of its own, which dies. This one reads what the followers say.
class HostTwinTest : public ::testing::Test {
 protected:
  // Returns everything that `original` and its followers have said, once all have ended.
  std::string AllThatIsSaid(const std::function<void(HostTwin&)>& original) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    said_ = ends[1];
    const pid_t process = fork();
    if (process == 0) {
      close(ends[0]);
      auto twin = HostTwin::Make(show_, [this] { begin_take_over_(); });
      if (twin.ok()) {
        original(*twin);
        twin->End();
      }
      _exit(0);
    }
    close(ends[1]);
    std::string all;
    char byte;
    while (read(ends[0], &byte, 1) == 1) all.push_back(byte);
    close(ends[0]);
    EXPECT_EQ(waitpid(process, nullptr, 0), process);
    return all;
  }
  void Say(const std::string& what) const {
    if (write(said_, what.data(), what.size()) != static_cast<ssize_t>(what.size())) _exit(1);
  }
  static bool Follows(HostTwin& twin) {
    const auto side = twin.Renew([] {});
    return side.ok() && *side == HostTwin::Side::kTwin;
  }
  [[noreturn]] static void Die() {
    raise(SIGKILL);
    _exit(1);
  }

  int said_ = -1;
  std::function<absl::Status(bool)> show_ = [](bool) { return absl::OkStatus(); };
  std::function<void()> begin_take_over_ = [] {};
};

TEST_F(HostTwinTest, shouldGoOnWithWhatTheOriginalHadAtTheFork) {
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              int value = 1;
              if (Follows(twin)) return Say(absl::StrCat(value));
              value = 2;
              Die();
            }),
            "1");
}

TEST_F(HostTwinTest, shouldBeTheLatestAlone) {
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              for (int value = 1; value <= 5; ++value) {
                if (Follows(twin)) return Say(absl::StrCat(value));
              }
              Die();
            }),
            "5");
}

// The original dies when it has forked the next twin, and before that one is the heir. That one
// looks late, when the heir of before has forked a twin itself.
TEST_F(HostTwinTest, shouldNotFollowWhereItWasNeverTheHeir) {
  bool dies_when_forked = false;
  show_ = [&](bool shown) {
    if (!shown && dies_when_forked) Die();
    return absl::OkStatus();
  };
  int pids[2], go_on[2];
  ASSERT_EQ(pipe(pids), 0);
  ASSERT_EQ(pipe(go_on), 0);
  const auto look_late = [&] {
    dies_when_forked = false;
    const pid_t self = getpid();
    char byte;
    if (write(pids[1], &self, sizeof(self)) != sizeof(self) || read(go_on[0], &byte, 1) != 1) {
      _exit(1);
    }
  };
  EXPECT_EQ(AllThatIsSaid([&](HostTwin& twin) {
              if (Follows(twin)) {
                Say("heir");
                if (Follows(twin)) return Say(" and its twin");
                pid_t late = 0;
                if (read(pids[0], &late, sizeof(late)) != sizeof(late)) _exit(1);
                const FileDescriptor end = OpenPidfd(late).value();
                if (write(go_on[1], "x", 1) != 1) _exit(1);
                pollfd ended = {end.get(), POLLIN, 0};
                (void)poll(&ended, 1, -1);
                return twin.End();
              }
              dies_when_forked = true;
              if (twin.Renew(look_late).ok()) Say(" and who was never the heir");
            }),
            "heir");
}

TEST_F(HostTwinTest, shouldKnowWhatWasNotedSinceTheFork) {
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              twin.Note("early");
              if (Follows(twin)) return Say(twin.noted());
              twin.Note("late");
              Die();
            }),
            "late");
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              if (Follows(twin)) return Say(absl::StrCat(twin.noted().size()));
              twin.Note("short");
              twin.Note(std::string(HostTwin::kMostNoted + 1, 'x'));
              Die();
            }),
            "0");
}

TEST_F(HostTwinTest, shouldFollowNobodyThatEndsInOrder) {
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              if (Follows(twin)) return Say("followed");
              twin.End();
              EXPECT_EQ(twin.pid(), 0);
            }),
            "");
}

TEST_F(HostTwinTest, shouldBeMissedWhenItIsDead) {
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              if (Follows(twin)) return Say("followed");
              kill(twin.pid(), SIGKILL);
              while (!twin.Reap()) {
              }
              Say(absl::StrCat(twin.pid(), twin.descriptor() < 0 ? "-" : "+"));
            }),
            "0-");
}

TEST_F(HostTwinTest, shouldBeKilledWhereItIsStopped) {
  EXPECT_EQ(AllThatIsSaid([this](HostTwin& twin) {
              if (Follows(twin)) return Say("followed");
              twin.KillIfStopped();  // it is not
              kill(twin.pid(), SIGSTOP);
              while (!twin.Reap()) twin.KillIfStopped();
              Say("gone");
            }),
            "gone");
}

// A twin of a twin is one like any other.
TEST_F(HostTwinTest, shouldBeFollowedInTurnUntilTheyDieInARow) {
  const std::string said = AllThatIsSaid([this](HostTwin& twin) {
    while (Follows(twin)) Say("x");
    Die();
  });
  EXPECT_GT(said.size(), 10u);
  EXPECT_LT(said.size(), 50u);
}

TEST_F(HostTwinTest, shouldHaveATwinBeforeItTakesOver) {
  int begun = 0;
  begin_take_over_ = [&begun] { ++begun; };
  const std::string said = AllThatIsSaid([&](HostTwin& twin) {
    // A process that is to follow one that was to follow begins, too.
    if (Follows(twin)) Say(absl::StrCat(begun % 10));
    Die();
  });
  EXPECT_EQ(said.substr(0, 5), "12345");
  EXPECT_GT(said.size(), 10u);
  EXPECT_LT(said.size(), 50u);
}

}  // namespace
}  // namespace baton::driver_process
