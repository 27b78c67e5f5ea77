#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "supervisor/driver/engine/describe.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/fuzz/brokered_service.h"
#include "tests/fuzz/clear_arena.h"
#include "tests/fuzz/hostile_writes.h"
#include "tests/fuzz/memory_device.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/shared_reads.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::fuzz {
namespace {

using driver::testing::CommitWriter;
using driver::testing::TestShape;
using driver_process::Engine;
using driver_process::Standing;

constexpr uint32_t kShards = 2, kConnections = 4, kDepth = 4;
constexpr int kMaxSteps = 200;
constexpr int kPatience = 1000;  // turns

class Listener final : public driver_process::EngineListener {
 public:
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t worker_id) override { fenced = worker_id; }
  void OnDeviceLost(const absl::Status&) override { BATON_CHECK(false); }

  uint64_t fenced = 0;  // the last that is to be killed
};

// An engine without its thread: this one takes its place, one turn at a time, so that an input does
// the same every time. What another thread would do in between, SharedReads does.
struct Service {
  Service(arena::Arena* of, bool outside_effects) : arena(of) {
    ClearArena(arena);
    driver_process::EngineOptions options;
    options.outside_effects = outside_effects;
    options.poison_deaths = 2;  // whoever dies often takes connections with it
    options.nanoseconds = [this] { return ++nanoseconds; };
    engine = Engine::Create(arena, &device, &listener, options).value();
  }

  // Something on the engine's thread, for which it wakes up.
  template <typename Work>
  void Do(Work work) {
    if (std::exchange(asleep, false)) engine->EndSleep();
    work();
  }

  // One turn; one that has nothing to do sleeps until it is told of something.
  void Turn() {
    if (asleep) {
      if (!engine->AwaitSignal(0)) return;
      asleep = false;
      engine->EndSleep();
    }
    if (!engine->Turn()) asleep = engine->BeginSleep();
    if (!asleep) engine->EndSleep();
  }

  // The worker's end of the pair that wakes it.
  FileDescriptor AddWorker(uint32_t slot, uint64_t id, driver_process::StateVersions versions = {},
                           Standing standing = Standing::kFirst) {
    int pair[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    Do([&] { engine->AddWorker(slot, id, FileDescriptor(pair[1]), versions, standing); });
    return FileDescriptor(pair[0]);
  }

  template <typename Done>
  void Until(Done done) {
    for (int turns = 0; !done(); ++turns) {
      BATON_CHECK(turns < kPatience);
      Turn();
    }
  }

  arena::Arena* const arena;
  uint64_t nanoseconds = 0;
  MemoryDevice device;
  Listener listener;
  bool asleep = false;
  std::unique_ptr<Engine> engine;
};

// The service that is left alone.
class Neighbour {
 public:
  explicit Neighbour(arena::Arena* arena) : service_(arena, /*outside_effects=*/false) {
    wake_ = service_.AddWorker(0, 1);
    service_.Do([this] { service_.engine->succession().SetReady(0); });
    honest_.emplace(service_.arena, &service_.device, 1, kNeighbours);
  }

  // Another answer comes.
  void Turn() {
    const uint64_t goal = honest_->echoes() + 1;
    service_.Until([&] {
      honest_->WorkerTurn();
      service_.Do([this] { honest_->PeersTurn(); });
      return honest_->echoes() >= goal;
    });
  }

 private:
  static constexpr uint32_t kNeighbours = 2;
  Service service_;
  FileDescriptor wake_;
  std::optional<HonestWorker> honest_;
};

class Attack {
 public:
  Attack(Service* service, Neighbour* neighbour, Program* program)
      : service_(*service),
        engine_(*service->engine),
        neighbour_(*neighbour),
        program_(*program),
        writes_(*service->arena) {
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      writers_.emplace_back(service->arena, shard);
      epochs_.push_back(0);
    }
    Enter(0);
    const uint8_t beside = program_.Byte();
    if (beside & 1) Enter(1);
    if (beside & 2) {
      standby_id_ = ++last_id_;
      standby_.emplace(service->arena, service->AddWorker(kStandby, standby_id_), standby_id_,
                       kStandby);
      service_.Do([this] { engine_.succession().SetReady(kStandby); });
    }
  }

  void Run() {
    const uint8_t how = program_.Byte();
    if (how & 3) Establish();
    for (int step = 0; step < kMaxSteps && !program_.empty(); ++step) {
      // A fenced worker is killed, sooner or later.
      for (uint32_t slot = 0; slot < 2; ++slot) {
        if (ids_[slot] == 0 || ids_[slot] != service_.listener.fenced || program_.Flag()) continue;
        Die(slot);
        Enter(slot);
      }
      Step();
      if (hold_ > 0) {
        --hold_;
      } else {
        service_.Turn();
      }
    }
    GoOnHonestly();
  }

 private:
  // Begins where it becomes interesting: all connections are there.
  void Establish() {
    MemoryDevice& device = service_.device;
    service_.Do([&] {
      for (uint32_t i = 0; i < kConnections; ++i) device.RequestConnection("hello");
    });
    Settle();
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      CommitWriter& writer = Writer(shard);
      HostileCommits(service_.arena, &writer, shard).Welcome();
      writer.Publish();
    }
    Settle();
    service_.Do([&] {
      const std::vector<MemoryConnection*> connections = device.connections();
      for (MemoryConnection* connection : connections) connection->Establish();
    });
    Settle();
  }

  void Settle() {
    service_.Turn();
    service_.Turn();
  }

  void Enter(uint32_t slot) {
    if (ids_[slot] != 0) return;
    ids_[slot] = ++last_id_;
    driver_process::StateVersions versions;
    if (program_.Flag()) versions = {program_.Below(3), program_.Below(4), program_.Below(4)};
    wakes_[slot] =
        service_.AddWorker(slot, ids_[slot], versions, Standing(program_.Byte() % 4 != 0));
    service_.Do([this, slot] { engine_.succession().SetReady(slot); });
  }

  void Die(uint32_t slot) {
    if (ids_[slot] == 0) return;
    service_.Do([this, slot, id = ids_[slot]] { engine_.succession().WorkerDead(slot, id); });
    ids_[slot] = 0;
    wakes_[slot].Reset();
  }

  uint64_t Epoch(uint32_t shard) {
    return arena::OwnershipEpoch(arena::LoadAcquire(service_.arena->shard(shard).owner.ownership));
  }

  CommitWriter& Writer(uint32_t shard) {
    if (epochs_[shard] != Epoch(shard)) {
      epochs_[shard] = Epoch(shard);
      writers_[shard].Begin(epochs_[shard]);
    }
    return writers_[shard];
  }

  void Commit(uint32_t shard, bool well) {
    // It stages on what is applied; now and then on what is not.
    if (program_.Below(8) != 0) Settle();
    CommitWriter& writer = Writer(shard);
    HostileCommits commits(service_.arena, &writer, shard);
    commits.Stage(program_);
    for (uint32_t left = well ? 0 : 1 + program_.Below(3); left > 0; --left) {
      commits.Distort(program_);
    }
    writer.Publish();
  }

  // On the engine's thread, as everything that the device does; nobody waits for it.
  void DeviceStep() {
    const uint8_t what = program_.Below(6);
    const uint8_t which = program_.Byte();
    service_.Do([this, what, which, text = std::string(program_.Block(program_.Below(70)))] {
      MemoryDevice& device = service_.device;
      const auto& connections = device.connections();
      const auto& queue_pairs = device.queue_pairs();
      if (what == 0 && connections.size() < 2 * kConnections) device.RequestConnection(text);
      if (!connections.empty() && what == 1) connections[which % connections.size()]->Establish();
      if (!connections.empty() && what == 2) connections[which % connections.size()]->End();
      if (queue_pairs.empty()) return;
      MemoryQueuePair* queue_pair = queue_pairs[which % queue_pairs.size()];
      if (what == 3) queue_pair->CompleteSend(verbs::CompletionStatus(which & 1));
      if (what == 4) queue_pair->Deliver(text);
      if (what == 5) queue_pair->Flush();
    });
  }

  void KeeperStep() {
    const uint32_t slot = program_.Below(2);
    const uint32_t shard = program_.Below(kShards);
    switch (program_.Below(11)) {
      case 0:
        Enter(slot);
        break;
      case 1:
        Die(slot);
        break;
      case 2:
        if (ids_[slot] == 0) break;
        service_.Do(
            [this, slot, id = ids_[slot]] { engine_.succession().WorkerEnded(slot, id, "crash"); });
        break;
      case 3:
        service_.Do([this, shard, slot = program_.Below(kStandby + 1)] {
          engine_.succession().Handoff(shard, slot, [](const absl::Status&, double) {});
        });
        break;
      case 4:
        service_.Do([this, shard] {
          engine_.succession().CancelHandoff(shard, absl::CancelledError("no"));
        });
        break;
      case 5:
        service_.Do([this, shard] {
          if (!engine_.succession().ownership(shard).owned()) return;
          engine_.Connect(shard, {"127.0.0.1", 9}, "", 0).IgnoreError();
        });
        break;
      case 6:
        service_.Do([this, slot, id = ids_[slot], silent = program_.Flag()] {
          engine_.succession().SetSilent(slot, id, silent);
        });
        break;
      case 7:
        service_.Do([this, slot, id = ids_[slot], standing = Standing(program_.Flag())] {
          engine_.succession().SetStanding(slot, id, standing);
        });
        break;
      case 8:
        service_.Do(
            [this, slot = standby_ ? kStandby : slot, id = standby_ ? standby_id_ : ids_[slot]] {
              engine_.succession().AskToStop(slot, id);
            });
        break;
      case 9:
        // Describes what control asks for when operators want to see the service.
        service_.Do([this, shard] {
          const v1::Shard described =
              driver_process::DescribeShard(engine_, shard, engine_.counters(shard));
          BATON_CHECK(described.SerializeAsString().size() < 100'000);
          for (uint32_t i = 0; i < kConnections; ++i)
            driver_process::ConnectionDescriber(engine_).Describe(i);
        });
        break;
      default:
        Settle();
    }
  }

  // The worker's end of its socket: full, closed, or with whatever in it.
  void WakeStep() {
    FileDescriptor& wake = wakes_[program_.Below(2)];
    if (!wake) return;
    char bytes[512] = {};
    switch (program_.Below(4)) {
      case 0:
        wake.Reset();
        break;
      case 1:
        while (send(wake.get(), bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
        }
        break;
      case 2:
        (void)!recv(wake.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
        break;
      default:
        shutdown(wake.get(), program_.Flag() ? SHUT_RD : SHUT_WR);
    }
  }

  void Step() {
    const uint32_t shard = program_.Below(kShards);
    switch (program_.Below(17)) {
      case 0:
        writes_.Raw(program_);
        break;
      case 1:
        writes_.Entry(program_, shard, Epoch(shard));
        break;
      case 2:
        writes_.Tail(program_, shard, Epoch(shard));
        break;
      case 3:
        writes_.Request(program_);
        break;
      case 4:
      case 5:
      case 6:
        Commit(shard, /*well=*/true);
        break;
      case 7:
        Commit(shard, /*well=*/false);
        break;
      case 8:
      case 9:
        DeviceStep();
        break;
      case 10:
        KeeperStep();
        break;
      case 11:
        WakeStep();
        break;
      case 12:
        // At a read that the engine makes, whatever it does there.
        service_.Do(
            [interference = Interference::Of(program_)] { SharedReads::Interfere(interference); });
        break;
      case 13:
        if (program_.Below(4) == 0) {
          writes_.Punch(program_);
        } else {
          writes_.Hints(program_, shard, Epoch(shard));
        }
        break;
      case 14:
        if (standby_) standby_->Turn();
        break;
      case 15:
        // The engine gets no processor for a while.
        hold_ = program_.Below(8);
        break;
      default:
        if (program_.Below(4) == 0) neighbour_.Turn();
    }
  }

  // When the attackers are dead, a correct successor gets both shards, looks at what they have
  // left, ends every connection and acknowledges everything; then the engine sleeps.
  void GoOnHonestly() {
    for (uint32_t slot = 0; slot < 2; ++slot) Die(slot);
    if (standby_)
      service_.Do([this, id = standby_id_] { engine_.succession().WorkerDead(kStandby, id); });
    service_.Do([] { SharedReads::Interfere({}); });
    const uint64_t id = ++last_id_;
    HonestHeir heir(service_.arena, service_.AddWorker(kSuccessor, id), id, kSuccessor);
    service_.Do([&] { engine_.succession().SetReady(kSuccessor); });
    int quiet = 0;
    service_.Until([&] {
      heir.Turn();
      service_.Do([&] { quiet = EndPeers(id) ? quiet + 1 : 0; });
      return quiet == 3;
    });
    service_.Until(
        [&] { return arena::LoadAcquire(service_.arena->header().driver_sleeping) == 1; });
  }

  // On the engine's thread. True: there was nothing left to do.
  bool EndPeers(uint64_t heir) {
    const std::vector<MemoryConnection*> connections = service_.device.connections();
    for (MemoryConnection* connection : connections) connection->End();
    for (MemoryQueuePair* queue_pair : service_.device.queue_pairs()) {
      while (queue_pair->Flush()) {
      }
    }
    bool acknowledged = true;
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      BATON_CHECK(engine_.succession().ownership(shard).owner_id() == heir);
      const arena::ShardRecord& record = service_.arena->shard(shard);
      acknowledged &= record.acknowledged == record.completion_tail;
    }
    return acknowledged && engine_.connection_count() == 0;
  }

  static constexpr uint32_t kStandby = 2, kSuccessor = 3;

  Service& service_;
  Engine& engine_;
  Neighbour& neighbour_;
  Program& program_;
  HostileWrites writes_;
  std::vector<CommitWriter> writers_;
  std::vector<uint64_t> epochs_;
  std::array<uint64_t, 2> ids_ = {};
  std::array<FileDescriptor, 2> wakes_;
  std::optional<HonestHeir> standby_;  // beside the attackers
  uint64_t standby_id_ = 0;
  uint64_t last_id_ = 0;
  uint32_t hold_ = 0;  // steps without a turn of the engine
};

}  // namespace

void HostileEngine(const uint8_t* data, size_t size) {
  static arena::Arena attacked =
      arena::Arena::Create(ShapeWithHeaps(kShards, kConnections, kDepth), "attacked").value();
  static arena::Arena beside = arena::Arena::Create(TestShape(1, 2, kDepth), "beside").value();
  static Neighbour neighbour(&beside);
  Program program(data, size);
  {
    SharedReads::Watch(&attacked.worker(0),
                       attacked.worker_map().total - attacked.worker_map().workers);
    Service service(&attacked, /*outside_effects=*/program.Byte() % 4 == 0);
    Attack(&service, &neighbour, &program).Run();
  }
  SharedReads::Forget();
  neighbour.Turn();
}

}  // namespace baton::fuzz
