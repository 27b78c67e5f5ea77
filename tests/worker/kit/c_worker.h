// A keeper, and workers that know baton.h alone, in one process.
#ifndef TESTS_WORKER_KIT_C_WORKER_H_
#define TESTS_WORKER_KIT_C_WORKER_H_

#include <baton/baton.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/worker/kind.h"

namespace baton::testing {

// A worker, which does what the test has said.
class CWorker {
 public:
  CWorker() = default;
  ~CWorker() { Detach(); }
  CWorker(const CWorker&) = delete;
  CWorker& operator=(const CWorker&) = delete;

  void Attach(const std::string& socket) {
    const baton_service service = {sizeof(service), this,    &Adopt, &Complete,
                                   &Release,        nullptr, nullptr};
    baton_worker_options options = BATON_WORKER_OPTIONS_INIT;
    options.socket = socket.c_str();
    options.service = "kv";
    options.commit_mode = BATON_COMMIT_EACH_COMPLETION;
    options.no_control_stream = true;
    ASSERT_EQ(baton_attach(&options, &service, &worker_), BATON_OK) << baton_error();
  }
  void Detach() { baton_detach(std::exchange(worker_, nullptr)); }
  void Poll() {
    if (worker_ != nullptr) EXPECT_EQ(baton_poll(worker_, nullptr), BATON_OK) << baton_error();
  }
  uint16_t Listen() {
    uint16_t port = 0;
    const std::string host = verbs::testing::FabricUnderTest().host;
    EXPECT_EQ(baton_listen(worker_, host.c_str(), 0, &port), BATON_OK) << baton_error();
    return port;
  }

  baton_worker* handle() const { return worker_; }
  uint8_t* buffers() const {
    size_t length = 0;
    return baton_buffers(worker_, &length);
  }

  baton_shard* shard = nullptr;  // owned now
  std::function<void(baton_shard*)> on_adopt;
  std::function<void(baton_shard*, const baton_completion&)> on_completion;
  std::function<void(baton_shard*)> on_release;

 private:
  static CWorker& Of(void* context) { return *static_cast<CWorker*>(context); }
  static int Adopt(void* context, baton_shard* shard) {
    Of(context).shard = shard;
    if (Of(context).on_adopt) Of(context).on_adopt(shard);
    return 0;
  }
  static void Complete(void* context, baton_shard* shard, const baton_completion* completion) {
    if (Of(context).on_completion) Of(context).on_completion(shard, *completion);
  }
  static void Release(void* context, baton_shard* shard) {
    if (Of(context).on_release) Of(context).on_release(shard);
    Of(context).shard = nullptr;
  }

  baton_worker* worker_ = nullptr;
};

class CWorkerFixture : public ::testing::Test {
 protected:
  void Start(const keeper::testing::KeeperThread::Change& change) {
    ASSERT_EQ(keeper_.Start(change, ServiceKind::EngineOptions()), absl::OkStatus());
    kind_.Begin(keeper_);
  }
  // Attaches `worker`. It is ready, and owns the shard if no other does.
  void Add(CWorker& worker) {
    ASSERT_NO_FATAL_FAILURE(worker.Attach(keeper_.socket()));
    ASSERT_EQ(baton_ready(worker.handle()), BATON_OK) << baton_error();
  }
  [[nodiscard]] static bool Until(std::initializer_list<CWorker*> workers,
                                  const std::function<void()>& turn,
                                  const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (CWorker* const worker : workers) worker->Poll();
          if (turn) turn();
        },
        done);
  }
  // Attaches the first owner of the shard.
  void Begin(CWorker& worker) {
    ASSERT_NO_FATAL_FAILURE(Add(worker));
    ASSERT_TRUE(Until({&worker}, nullptr, [&] { return worker.shard != nullptr; }));
  }
  // `former` leaves, and `next` owns the shard.
  void Replace(CWorker& former, CWorker& next) {
    ASSERT_NO_FATAL_FAILURE(Add(next));
    former.Detach();
    ASSERT_TRUE(Until({&next}, nullptr, [&] { return next.shard != nullptr; }));
  }

  keeper::testing::KeeperThread keeper_;
  ServiceKind kind_;
};

}  // namespace baton::testing

#endif  // TESTS_WORKER_KIT_C_WORKER_H_
