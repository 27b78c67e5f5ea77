// A process that was forked from the opener of a device follows it when it is dead.
//
// In each test there are three processes: the opener, which listens and dies; the follower, which
// is forked from it before that, has the peer, and goes on; and gtest's own, which waits for both.
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

// Longer than any test takes, in seconds.
constexpr unsigned int kTooLong = 120;

// The processes tell each other these.
struct Told {
  std::atomic<pid_t> nic{0}, follower{0};
  std::atomic<bool> asked{false};
  std::atomic<uint32_t> number{0};
  std::atomic<uint32_t> port{0};
};

class TakeOver : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  TakeOver()
      : told_(*new (mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Told) {}

  // `work` is the opener's, which returns a number and dies of SIGKILL. `go_on` is the follower's,
  // which has asked for `asks` connections before that.
  void Follow(int asks, const std::function<uint32_t()>& work, const std::function<void()>& go_on) {
    asks_ = asks;
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    std::fflush(nullptr);
    const pid_t opener = fork();
    if (opener == 0) Open(work, go_on);
    int status = -1;
    ASSERT_EQ(waitpid(opener, &status, 0), opener);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    ASSERT_NE(told_.follower, 0);
    ASSERT_EQ(waitpid(told_.follower, &status, 0), told_.follower);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    if (told_.nic != 0) kill(told_.nic, SIGKILL);
  }

  [[noreturn]] void Open(const std::function<uint32_t()>& work,
                         const std::function<void()>& go_on) {
    alarm(kTooLong);
    auto opened = OpenOpeners();
    if (!opened.ok()) Leave(opened.status().ToString().c_str());
    server_ = std::make_unique<Side>(*std::move(opened));
    listener_ = Listen();
    port_ = listener_->address().port;  // which a follower cannot ask for
    (void)server_->device->SetFollowable(true);
    const pid_t opener = getpid();
    const pid_t follower = fork();
    if (follower == 0) BeFollower(opener, go_on);
    (void)server_->device->SetFollowable(false);
    told_.follower = follower;
    while (!told_.asked) usleep(100);
    told_.number = work();
    if (!HasFailure()) raise(SIGKILL);
    Leave("the opener's part has failed");
  }
  [[noreturn]] void BeFollower(pid_t opener, const std::function<void()>& go_on) {
    alarm(kTooLong);
    const FileDescriptor life(static_cast<int>(syscall(SYS_pidfd_open, opener, 0)));
    clients_.emplace_back(std::make_unique<Side>(GetParam().create().value()));
    for (int i = 1; i < asks_; ++i) {
      clients_.emplace_back(std::make_unique<Side>(GetParam().create().value()));
    }
    for (int i = 0; i < asks_; ++i) Ask(*clients_[static_cast<size_t>(i)]);
    // The turns of some clients send their requests.
    for (int i = 0; i < 1000; ++i) TurnClients();
    told_.asked = true;
    pollfd end = {life.get(), POLLIN, 0};
    while (poll(&end, 1, 0) == 0) {
      TurnClients();
      if (meanwhile_) meanwhile_();
    }
    absl::Status taken = server_->device->BeginTakeOver();
    if (taken.ok()) taken = server_->device->TakeOver();
    if (!taken.ok()) Leave(taken.ToString().c_str());
    go_on();
    if (HasFailure()) Leave("the follower's part has failed");
    _exit(0);
  }
  [[noreturn]] static void Leave(const char* why) {
    std::printf("%s\n", why);
    std::fflush(nullptr);
    _exit(1);
  }

  absl::StatusOr<std::unique_ptr<Device>> OpenOpeners() {
    if (GetParam().name == "rdma") return GetParam().create();
    pid_t nic = 0;
    auto device = OpenWithNic(&nic, {}, /*tied=*/false);
    told_.nic = nic;
    return device;
  }
  std::unique_ptr<Listener> Listen(uint32_t port = 0) {
    return server_->device->Listen({GetParam().host, static_cast<uint16_t>(port)}, 8).value();
  }
  Side& client() { return *clients_[0]; }
  void TurnClients() {
    for (const auto& one : clients_) one->Turn();
  }
  void Ask(Side& one) {
    one.id = one.device->Connect({GetParam().host, port_}, one.queue_pair.get(), {}).value();
  }

  // ---- The opener's parts, whose peer turns by itself.
  CmEvent AwaitAlone(CmEventType type) {
    for (;;) {
      server_->Turn();
      while (!server_->events.empty()) {
        CmEvent event = std::move(server_->events.front());
        server_->events.pop_front();
        if (event.type == type) return event;
      }
    }
  }
  // Takes one event, and does not say that it is handled.
  CmEvent TakeOne() {
    CmEvent event;
    do server_->device->Progress();
    while (!server_->device->NextEvent(&event));
    return event;
  }
  bool HasNoMore() {
    CmEvent none;
    return !server_->device->NextEvent(&none);
  }
  uint32_t AcceptOne() {
    CmEvent event = AwaitAlone(CmEventType::kConnectRequest);
    EXPECT_TRUE(event.new_id->Accept(server_->queue_pair.get(), {}).ok());
    return event.new_id.release()->number();
  }
  uint32_t EstablishOne() {
    const uint32_t number = AcceptOne();
    (void)AwaitAlone(CmEventType::kEstablished);
    EXPECT_TRUE(HasNoMore());
    return number;
  }

  // ---- The follower's.
  bool Await(Side& side, Side& other, CmEventType type) {
    return AwaitEvent(side, other, type, &event_);
  }
  absl::StatusOr<Device::AdoptedId> Adopt(Device::IdStage stage, QueuePair* queue_pair) {
    return server_->device->AdoptId(
        {.number = told_.number, .stage = stage, .queue_pair = queue_pair, .check_route = {}});
  }
  void AdoptOpen() {
    auto adopted = Adopt(Device::IdStage::kOpen, server_->queue_pair.get());
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    EXPECT_FALSE(adopted->unaccepted);
    server_->id = std::move(adopted->id);
    ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
  }
  void AcceptAndEstablish() {
    ASSERT_TRUE(server_->id->Accept(server_->queue_pair.get(), {}).ok());
    ASSERT_TRUE(Await(client(), *server_, CmEventType::kEstablished));
    ASSERT_TRUE(Await(*server_, client(), CmEventType::kEstablished));
    ExpectData();
  }
  void ExpectData() {
    const Buffer from(client().device.get(), 4096, kLocalWrite);
    Buffer to(server_->device.get(), 4096, kLocalWrite);
    ASSERT_TRUE(PostReceive(*server_->queue_pair, 1, {to.Sge(0, 8)}).ok());
    ASSERT_TRUE(PostSend(*client().queue_pair, Request(Opcode::kSend, 2), {from.Sge(0, 8)}).ok());
    EXPECT_EQ(AwaitCompletion(*server_, client()).status, CompletionStatus::kSuccess);
    EXPECT_EQ(AwaitCompletion(client(), *server_).status, CompletionStatus::kSuccess);
  }

  Told& told_;
  int asks_ = 0;
  std::function<void()> meanwhile_;  // the follower's, until the opener is dead
  std::unique_ptr<Side> server_;
  std::unique_ptr<Listener> listener_;
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Side>> clients_;
  CmEvent event_;
};

TEST_P(TakeOver, shouldGetTheEventAgainThatTheOpenerHadNotHandled) {
  Follow(
      1, [&] { return TakeOne().new_id.release()->number(); },
      [&] {
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        ASSERT_TRUE(Await(*server_, client(), CmEventType::kConnectRequest));
        EXPECT_EQ(event_.listener, listener_.get());
        server_->id = std::move(event_.new_id);
        AcceptAndEstablish();
      });
}

TEST_P(TakeOver, shouldGetRequestsThatTheOpenerHadNotSeen) {
  Follow(
      3, [] { return 0u; },
      [&] {
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        std::vector<std::unique_ptr<ConnectionId>> ids;
        for (const auto& one : clients_) {
          ASSERT_TRUE(Await(*server_, *one, CmEventType::kConnectRequest));
          ids.push_back(std::move(event_.new_id));
        }
        server_->id = std::move(ids[0]);
        const auto asked = std::find_if(clients_.begin(), clients_.end(), [&](const auto& one) {
          return one->id->local_address().port == server_->id->peer_address().port;
        });
        ASSERT_NE(asked, clients_.end());
        std::swap(clients_[0], *asked);
        AcceptAndEstablish();
      });
}

TEST_P(TakeOver, shouldAnswerARequestThatTheOpenerHadHandled) {
  Follow(
      1,
      [&] {
        CmEvent event = AwaitAlone(CmEventType::kConnectRequest);
        EXPECT_TRUE(HasNoMore());
        return event.new_id.release()->number();
      },
      [&] {
        auto adopted = Adopt(Device::IdStage::kRequested, nullptr);
        ASSERT_TRUE(adopted.ok()) << adopted.status();
        EXPECT_TRUE(adopted->unaccepted);
        server_->id = std::move(adopted->id);
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        AcceptAndEstablish();
        EXPECT_GT(server_->id->depths().theirs, 0);
      });
}

// The table is older here than the accept.
TEST_P(TakeOver, shouldGoOnWithAConnectionThatTheOpenerHadAccepted) {
  Follow(
      1, [&] { return AcceptOne(); },
      [&] {
        auto adopted = Adopt(Device::IdStage::kAccepting, server_->queue_pair.get());
        ASSERT_TRUE(adopted.ok()) << adopted.status();
        EXPECT_FALSE(adopted->unaccepted);
        server_->id = std::move(adopted->id);
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        ASSERT_TRUE(Await(client(), *server_, CmEventType::kEstablished));
        ASSERT_TRUE(Await(*server_, client(), CmEventType::kEstablished));
        ExpectData();
        ASSERT_TRUE(server_->id->Disconnect().ok());
        ASSERT_TRUE(Await(client(), *server_, CmEventType::kDisconnected));
      });
}

// The opener dies at some moment of Accept().
TEST_P(TakeOver, shouldAcceptOnceWhereverTheOpenerDies) {
  for (int microseconds = 1; microseconds < 1000; microseconds += microseconds / 3 + 1) {
    SCOPED_TRACE(microseconds);
    told_.asked = false;
    Follow(
        1,
        [&] {
          CmEvent event = AwaitAlone(CmEventType::kConnectRequest);
          EXPECT_TRUE(HasNoMore());
          told_.number = event.new_id->number();
          std::thread killer([&] {
            const uint64_t begin = MonotonicNanoseconds();
            while (MonotonicNanoseconds() - begin < 1000u * static_cast<unsigned>(microseconds)) {
            }
            raise(SIGKILL);
          });
          EXPECT_TRUE(event.new_id->Accept(server_->queue_pair.get(), {}).ok());
          killer.join();
          return 0u;
        },
        [&] {
          auto adopted = Adopt(Device::IdStage::kAccepting, server_->queue_pair.get());
          ASSERT_TRUE(adopted.ok()) << adopted.status();
          server_->id = std::move(adopted->id);
          ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
          if (adopted->unaccepted) {
            AcceptAndEstablish();
          } else {
            ASSERT_TRUE(Await(client(), *server_, CmEventType::kEstablished));
            ASSERT_TRUE(Await(*server_, client(), CmEventType::kEstablished));
            ExpectData();
          }
          EXPECT_TRUE(server_->events.empty() && client().events.empty());
        });
    if (HasFailure()) return;
  }
}

TEST_P(TakeOver, shouldGoOnWithAnEstablishedConnection) {
  Follow(
      1, [&] { return EstablishOne(); },
      [&] {
        AdoptOpen();
        ASSERT_TRUE(Await(client(), *server_, CmEventType::kEstablished));
        ExpectData();
        ASSERT_TRUE(client().id->Disconnect().ok());
        ASSERT_TRUE(Await(*server_, client(), CmEventType::kDisconnected));
      });
}

// The peer disconnects while nobody serves.
TEST_P(TakeOver, shouldHearOfAnEndThatTheOpenerDidNotHear) {
  meanwhile_ = [this] {
    if (told_.port != 1) return;
    client().id.reset();
    told_.port = 2;
  };
  Follow(
      1,
      [&] {
        const uint32_t number = EstablishOne();
        told_.port = 1;  // the peer may go
        while (told_.port != 2) usleep(100);
        return number;
      },
      [&] {
        AdoptOpen();
        ASSERT_TRUE(Await(*server_, client(), CmEventType::kDisconnected));
      });
}

TEST_P(TakeOver, shouldEndWhatOnlyTheOpenerKnew) {
  Follow(
      1,
      [&] {
        (void)EstablishOne();
        told_.port = Listen().release()->address().port;
        return 0u;
      },
      [&] {
        ASSERT_TRUE(Await(client(), *server_, CmEventType::kEstablished));
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        ASSERT_TRUE(Await(client(), *server_, CmEventType::kDisconnected));
        EXPECT_EQ(Listen(told_.port)->address().port, told_.port);
        client().id.reset();
        client().queue_pair = client().MakeQueuePair();
        Ask(client());  // at the listener of before, which goes on
        ASSERT_TRUE(Await(*server_, client(), CmEventType::kConnectRequest));
      });
}

// A connect that was under way ends, or goes on.
TEST_P(TakeOver, shouldTellWhatBecomesOfAConnectUnderWay) {
  std::unique_ptr<Listener> theirs;
  meanwhile_ = [&] {
    if (theirs) return;
    theirs = client().device->Listen({GetParam().host, 0}, 8).value();
    told_.port = theirs->address().port;
  };
  Follow(
      0,
      [&] {
        while (told_.port == 0) usleep(100);
        return server_->device
            ->Connect({GetParam().host, static_cast<uint16_t>(told_.port)},
                      server_->queue_pair.get(), {})
            .value()
            .release()
            ->number();
      },
      [&] {
        auto adopted = Adopt(Device::IdStage::kConnecting, server_->queue_pair.get());
        ASSERT_TRUE(adopted.ok()) << adopted.status();
        server_->id = std::move(adopted->id);
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        ASSERT_TRUE(Pump(*server_, client(), [&] {
          if (client().events.empty()) return !server_->events.empty();
          CmEvent event = std::move(client().events.front());
          client().events.pop_front();
          if (event.type != CmEventType::kConnectRequest) return false;
          EXPECT_TRUE(event.new_id->Accept(client().queue_pair.get(), {}).ok());
          client().id = std::move(event.new_id);
          return false;
        }));
        const CmEvent& told = server_->events.front();
        EXPECT_EQ(told.id, server_->id.get());
        EXPECT_EQ(told.type, GetParam().name == "rdma" ? CmEventType::kUnreachable
                                                       : CmEventType::kEstablished);
      });
}

// Nobody was told that the opener had stopped listening.
TEST_P(TakeOver, shouldListenWhereTheOpenerHadStopped) {
  Follow(
      0,
      [&] {
        listener_.reset();
        return 0u;
      },
      [&] {
        ASSERT_TRUE(server_->device->DestroyUnknownIds().ok());
        Ask(client());
        ASSERT_TRUE(Await(*server_, client(), CmEventType::kConnectRequest));
        EXPECT_EQ(event_.listener, listener_.get());
      });
}

TEST_P(TakeOver, shouldNotAdoptWhatIsNoConnection) {
  Follow(
      0, [] { return 0u; },
      [&] {
        for (const uint32_t number : {0u, 9u, 77'777u}) {
          told_.number = number;
          EXPECT_TRUE(absl::IsNotFound(Adopt(Device::IdStage::kOpen, nullptr).status())) << number;
        }
      });
}

// The peer can write to it until then.
TEST_P(TakeOver, shouldEndARegionThatOnlyTheOpenerHad) {
  Buffer* buffer = nullptr;
  Follow(
      1,
      [&] {
        buffer = new Buffer(server_->device.get(), 4096, kAllAccess);
        told_.port = buffer->region->rkey();
        return EstablishOne();
      },
      [&] {
        AdoptOpen();
        ASSERT_TRUE(Await(client(), *server_, CmEventType::kEstablished));
        EXPECT_TRUE(server_->device->AdoptRegion(told_.port).ok());
        const Buffer from(client().device.get(), 4096, kLocalWrite);
        const SendRequest request = RemoteRequest(Opcode::kWrite, 1, from.address(), told_.port);
        ASSERT_TRUE(PostSend(*client().queue_pair, request, {from.Sge(0, 8)}).ok());
        EXPECT_EQ(AwaitCompletion(client(), *server_).status, CompletionStatus::kRemoteAccessError);
      });
}

// The request of the dead opener may be at the device when the next one asks.
TEST_P(TakeOver, shouldExecuteNothingThatTheOpenerHadSentBefore) {
  Follow(
      0,
      [&] {
        (void)server_->queue_pair->SetError();
        return 0u;
      },
      [&] {
        ASSERT_TRUE(server_->queue_pair->SetReset().ok());
        ASSERT_TRUE(server_->queue_pair->SetInit().ok());
        ASSERT_EQ(server_->queue_pair->state(), QueuePairState::kInit);
      });
}

std::vector<DeviceFactory> FollowableDevices() {
  std::vector<DeviceFactory> devices = {
      {"soft", [] { return soft::CreateSoftDevice({}); }, "127.0.0.1"}};
  if (const char* const address = std::getenv("BATON_VM_ADDRESS")) {
    devices.push_back({"rdma", [] { return rdma::CreateRdmaDevice({}); }, address});
  }
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, TakeOver, ::testing::ValuesIn(FollowableDevices()),
                         [](const auto& info) { return info.param.name; });

TEST(CheckFollowable, shouldSayThatNobodyCanFollowWhoHasTheNicInside) {
  const auto embedded = soft::CreateSoftDevice({}).value();
  EXPECT_FALSE(embedded->CheckFollowable().ok());
  EXPECT_FALSE(embedded->BeginTakeOver().ok());
}

}  // namespace
}  // namespace baton::verbs::testing
