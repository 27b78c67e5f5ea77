#include "tests/supervisor/control/control_fixture.h"

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "google/protobuf/text_format.h"
#include "lib/base/check.h"
#include "supervisor/control/config.h"

namespace baton {
namespace {

constexpr char kDescription[] = R"pb(
  service {
    name: "kv"
    device: "soft"
    shard_count: 2
    shards_owned: 1
    worker_count: 2
    ready_workers: 2
    connection_count: 3
    max_connections: 64
    keeper_pid: 4711
    driver_pid: 4710
    driver_uptime_seconds: 3725
    uptime_seconds: 3725
    listeners { host: "0.0.0.0" port: 7471 }
    worker_socket: "/run/baton/kv.sock"
    version { release: "0.1.0" layout_version: 2 protocol_version: 1 }
    handoff_blackout { count: 2 p50_us: 31 p99_us: 45 max_us: 45 }
    blackouts {
      cause: "handoff"
      blackout { count: 2 p50_us: 31 p99_us: 45 max_us: 45 }
    }
    blackouts {
      cause: "no_keeper"
      blackout { count: 1 max_us: 21000 }
    }
    buffer_bytes: 16777216
  }
  blackouts { count: 2 }
  blackouts { count: 1 }
  shards {
    index: 0
    epoch: 3
    owner_worker_id: 1
    heir_worker_id: 2
    connections: 2
    commits: 120
    sends_posted: 240
    receives_posted: 260
    completions: 500
    completions_unacknowledged: 4
    send_requests_in_flight: 7
    handoff_blackout { count: 2 p50_us: 31 p99_us: 45 max_us: 45 }
    last_report {
      epoch: 2
      cause: "crash"
      former_worker_id: 9
      successor_worker_id: 1
      transactions_recovered: 1
      never_submitted: 2
      in_flight: 1
      completed_undelivered: 0
      delivered_uncommitted: 1
      unix_micros: 1738314900123456
      work_requests { connection: 0 send: true sequence: 17 opcode: "SEND" outcome: "in_flight" }
      work_requests { connection: 5 sequence: 18 opcode: "RECV" outcome: "never_submitted" }
    }
  }
  shards {
    index: 1
    epoch: 1
    connections: 1
    waiting_reason: "no worker is ready"
    poisoned_connections: 1
    last_report {
      epoch: 1
      cause: "crash"
      former_worker_id: 8
      unix_micros: 1738314900123456
      poisoned {
        connection: 6
        generation: 2
        completion: 4711
        kind: "receive"
        sequence: 17
        deaths: 3
        worker_ids: 5
        worker_ids: 7
        worker_ids: 8
      }
    }
  }
  workers {
    id: 1
    name: "kv-old"
    version: "1.0"
    state: WORKER_STATE_READY
    pid: 4712
    uid: 1000
    shards: 0
    heartbeats: 77
    seconds_since_heartbeat: 0.05
    reads_state_version_min: 1
    reads_state_version_max: 2
    writes_state_version: 1
    attached_seconds: 3600
    control_stream: true
    healthy: true
  }
  workers {
    id: 2
    name: "kv-new"
    version: "1.1"
    state: WORKER_STATE_READY
    pid: 4713
    uid: 1000
    attached_seconds: 59
    healthy: true
  }
)pb";

}  // namespace

internal::Description KvDescription() {
  internal::Description description;
  BATON_CHECK(google::protobuf::TextFormat::ParseFromString(kDescription, &description));
  return description;
}

std::vector<v1::Connection> KvConnections() {
  std::vector<v1::Connection> connections(3);
  const uint32_t indexes[] = {0, 1, 5};
  for (size_t i = 0; i < connections.size(); ++i) {
    v1::Connection& one = connections[i];
    one.set_index(indexes[i]);
    one.set_generation(1);
    one.set_shard(i == 2 ? 1 : 0);
    one.set_state(v1::CONNECTION_STATE_ESTABLISHED);
    one.set_qp_number(17 + static_cast<uint32_t>(i));
    one.set_local_address("10.0.0.1:7471");
    one.set_peer_address("10.0.0.2:40001");
    one.set_sends_committed(12);
    one.set_sends_posted(11);
    one.set_sends_completed(10);
    one.set_bytes_received(2048);
  }
  connections[2].set_state(v1::CONNECTION_STATE_DRAINING);
  connections[2].set_receive_window(32);
  connections[2].set_receive_window_us(4096);
  connections[2].set_initiator_depth(16);
  connections[2].set_responder_resources(0);
  connections[2].set_last_error("retry exceeded");
  return connections;
}

v1::Upgrade KvUpgrade(uint64_t id, v1::UpgradePhase phase) {
  v1::Upgrade upgrade;
  upgrade.set_id(id);
  upgrade.set_exec("/opt/kv-1.1");
  upgrade.add_arguments("--fast");
  upgrade.set_phase(phase);
  upgrade.add_old_worker_ids(1);
  upgrade.add_new_worker_ids(2);
  upgrade.set_old_version("1.0");
  upgrade.set_new_version("1.1");
  upgrade.set_started_unix_micros(1738314900000000 + static_cast<int64_t>(id) * 60'000'000);
  if (phase == v1::UPGRADE_PHASE_WATCHING) upgrade.set_watch_seconds_left(25);
  if (phase >= v1::UPGRADE_PHASE_WATCHING && phase != v1::UPGRADE_PHASE_FAILED) {
    upgrade.set_slowest_blackout_us(212);
  }
  if (phase >= v1::UPGRADE_PHASE_COMPLETED) {
    upgrade.set_ended_unix_micros(upgrade.started_unix_micros() + 31'000'000);
  }
  if (phase == v1::UPGRADE_PHASE_ROLLED_BACK) {
    upgrade.set_detail("worker 2 died");
    upgrade.set_slowest_return_us(340);
  }
  if (phase == v1::UPGRADE_PHASE_FAILED) upgrade.set_detail("worker 2 was not ready within 30 s");
  return upgrade;
}

v1::Event KvEvent(uint64_t sequence, const std::string& kind, const std::string& message) {
  v1::Event event;
  event.set_sequence(sequence);
  event.set_service("kv");
  event.set_unix_micros(1738314900000000 + static_cast<int64_t>(sequence));
  event.set_kind(kind);
  event.set_message(message);
  event.set_worker_id(1);
  event.set_shard(0);
  event.set_connection(-1);
  return event;
}

std::string WorkerToken(const std::string& name) {
  std::string token = name;
  token.resize(16, '.');
  return token;
}

void ControlFixture::SetUp() {
  char directory[] = "/tmp/baton-control-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  state_dir_ = directory;
  ASSERT_EQ(chmod(directory, 0755), 0);  // for the tests that are another user
  config_.set_state_dir(state_dir_);
  config_.add_services("kv");
  config_.add_services("nvme");
  keeper_ = std::make_unique<FakeKeeper>(ManagementSocketPath(state_dir_, "kv"));
  keeper_->SetDescription(KvDescription());
  keeper_->SetConnections(KvConnections());
  keeper_->Start();
  StartControl();
}

void ControlFixture::StartControl() {
  control_.reset();
  FromBatond from_batond;
  from_batond.link = batond_.Connect();
  auto control = ControlServer::Start(config_, std::chrono::seconds(10), std::move(from_batond));
  ASSERT_TRUE(control.ok()) << control.status();
  control_ = *std::move(control);
}

void ControlFixture::TearDown() {
  control_.reset();
  keeper_.reset();
  std::filesystem::remove_all(state_dir_);
}

}  // namespace baton
