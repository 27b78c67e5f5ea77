#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/host.h"
#include "tests/worker/kind.h"

namespace baton::testing {
namespace {

// The host of one worker. It also sees to it that the library keeps to the interface.
class InProcessHost {
 public:
  explicit InProcessHost(keeper::testing::KeeperThread& keeper) : engine_(keeper.engine()) {
    host_.version = BATON_NATIVE_VERSION;
    host_.bytes = sizeof(host_);
    host_.baton_release = kRelease;
    host_.context = this;
    auto session = ConnectUnix(keeper.socket());
    host_.socket = session.ok() ? session->Release() : -1;
    host_.event_fd = engine_.device_event_fd();
    host_.attend = [](void*) { return 0; };
    host_.adopt = [](void* self, uint32_t shard, uint64_t epoch) {
      return static_cast<InProcessHost*>(self)->Adopt(shard, epoch);
    };
    // The engine of the keeper does both at a time.
    host_.apply = [](void* self, uint32_t shard) {
      return static_cast<InProcessHost*>(self)->Drive(shard);
    };
    host_.poll = host_.apply;
    host_.request_notification = [](void* self, uint32_t shard) {
      return static_cast<InProcessHost*>(self)->RequestNotification(shard);
    };
    host_.release = [](void* self, uint32_t shard, uint64_t epoch) {
      return static_cast<InProcessHost*>(self)->Release(shard, epoch);
    };
    host_.last_error = [](void*) { return "the library broke the rules"; };
  }
  InProcessHost(const InProcessHost&) = delete;
  InProcessHost& operator=(const InProcessHost&) = delete;
  ~InProcessHost() { EXPECT_TRUE(adopted_.empty()) << "a shard was adopted and never released"; }

  BatonNativeHost* host() { return &host_; }
  void DriveAll() {
    for (const auto& [shard, epoch] : adopted_) Drive(shard);
  }

 private:
  int Adopt(uint32_t shard, uint64_t epoch) {
    EXPECT_FALSE(adopted_.contains(shard)) << "shard " << shard << " was adopted before";
    adopted_[shard] = epoch;
    return 0;
  }
  int Drive(uint32_t shard) {
    EXPECT_TRUE(adopted_.contains(shard)) << "shard " << shard << " is driven and not adopted";
    return OnEngine([&] { engine_.Drive(shard); });
  }
  int RequestNotification(uint32_t shard) {
    EXPECT_TRUE(adopted_.contains(shard)) << "shard " << shard << " was not adopted";
    bool asked = false;
    OnEngine([&] { asked = engine_.driver().RequestNotification(shard).ok(); });
    return asked ? 0 : -EIO;
  }
  int Release(uint32_t shard, uint64_t epoch) {
    const auto found = adopted_.find(shard);
    if (found == adopted_.end() || found->second != epoch) {
      ADD_FAILURE() << "shard " << shard << " of epoch " << epoch << " was not adopted";
      return -EINVAL;
    }
    adopted_.erase(found);
    return OnEngine([&] {
      if (engine_.succession().ownership(shard).epoch() == epoch) engine_.Drive(shard);
    });
  }
  int OnEngine(const std::function<void()>& work) {
    engine_.Run(work);
    return 0;
  }

  driver_process::Engine& engine_;
  BatonNativeHost host_ = {};
  std::map<uint32_t, uint64_t> adopted_;  // epochs
};

// Set while there is a keeper.
std::function<BatonNativeHost*()> g_new_host;

}  // namespace

extern "C" BatonNativeHost* baton_native_host() { return g_new_host ? g_new_host() : nullptr; }

struct ServiceKind::Hosts {
  std::deque<InProcessHost> hosts;
};

ServiceKind::ServiceKind() : hosts_(std::make_unique<Hosts>()) {}
ServiceKind::~ServiceKind() { g_new_host = nullptr; }

driver_process::EngineOptions ServiceKind::EngineOptions() {
  driver_process::EngineOptions options;
  options.owners_drive = true;
  return options;
}

void ServiceKind::Begin(keeper::testing::KeeperThread& keeper) {
  g_new_host = [this, &keeper] { return hosts_->hosts.emplace_back(keeper).host(); };
}

void ServiceKind::DriveForOwners() {
  for (InProcessHost& host : hosts_->hosts) host.DriveAll();
}

}  // namespace baton::testing
