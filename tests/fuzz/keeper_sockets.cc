#include <linux/futex.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "lib/verbs/soft/soft_device.h"
#include "proto/baton/internal/keeper.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/shape.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/keeper/keeper.h"
#include "supervisor/keeper/programs/brokered_programs.h"
#include "tests/fuzz/clear_arena.h"
#include "tests/fuzz/fake_processes.h"
#include "tests/fuzz/program.h"
#include "tests/supervisor/keeper/inline_driver_client.h"

namespace baton::fuzz {
namespace {

constexpr int kMaxSteps = 120;
constexpr size_t kMaxClients = 8;
constexpr uint32_t kShards = 2;
constexpr int kPatience = 100'000;

internal::KeeperConfig Config() {
  internal::KeeperConfig config;
  config.set_state_dir("/nowhere");
  config.set_control_socket("/nowhere/control.sock");
  v1::ServiceConfig* service = config.mutable_service();
  service->set_name("kv");
  service->mutable_device()->mutable_soft();
  service->set_shards(kShards);
  service->set_max_connections(4);
  service->set_send_queue_depth(4);
  service->set_receive_queue_depth(4);
  service->set_connection_state_bytes(64);
  service->set_shard_state_bytes(64);
  service->set_buffer_bytes(1 << 16);
  service->set_max_workers(4);
  service->set_max_listeners(2);
  service->set_handoff_timeout_ms(50);
  // Nobody beats here, and nobody is to be killed for that.
  service->set_heartbeat_ms(60'000);
  service->set_hang_timeout_ms(3'600'000);
  service->set_ready_timeout_ms(50);
  service->set_watch_window_ms(20);
  service->set_stop_timeout_ms(10);
  service->set_poison_deaths(2);
  return config;
}

// The parts of a keeper. They are put together in the same order as in supervisor/keeper/keeper.cc.
struct TheKeeper final : private keeper::DriverListener {
  explicit TheKeeper(arena::Arena* arena) : arena_(arena) {
    ClearArena(arena);
    device = verbs::soft::CreateSoftDevice({}).value();
    driver_process::EngineOptions options;
    options.poison_deaths = config.service().poison_deaths();
    engine = driver_process::Engine::Create(arena, device.get(), &news, options).value();
    // Its thread is ours: an input does the same every time, and nobody waits for a processor.
    driver.emplace(config.service(), *engine, news);
    driver->SetListener(this);
    news.SetWake([this] { boost::asio::post(loop, [this] { driver->DeliverNews(); }); });
    policies.emplace(config.service(), *driver);
    drain.emplace(loop, config, *driver, events);  // none begins: /nowhere cannot be written
    const keeper::CommonParts common{loop, config, *driver, *policies, events};
    workers.emplace(common);
    programs.emplace(loop, config.launcher(), *driver);
    const keeper::KeeperParts parts{common, *workers, *programs};
    upgrades.emplace(parts);
    standbys.emplace(parts, *upgrades);
    limits.emplace(parts, *workers);
    live.emplace(config, config.service(), *driver, *policies, events);
    management.emplace(parts, keeper::Management::Managed{*upgrades, *limits, *drain, *live},
                       [] {});
  }
  void OnEvent(const internal::EngineEvent& event) override {
    events.Add(event.kind(), event.message(), 0, event.worker_id(), event.shard(),
               event.connection());
  }
  void OnFenced(uint64_t worker_id) override { (void)workers->Kill(worker_id, "fenced"); }
  void OnThreadEnded(uint64_t worker_id) override { workers->OnThreadEnded(worker_id); }
  void OnDeviceLost(const absl::Status&) override { BATON_CHECK(false); }

  // Both threads do what they have to do.
  void Turn() {
    loop.restart();
    loop.poll();
    engine->Turn();
    loop.restart();
    loop.poll();
  }

  arena::Arena* const arena_;
  internal::KeeperConfig config = Config();
  boost::asio::io_context loop{1};
  keeper::EventLog events{"kv", [this](const v1::Event& event) {
                            if (management) management->Publish(event);
                          }};
  std::unique_ptr<verbs::Device> device;
  driver_process::NewsQueue news;
  std::unique_ptr<driver_process::Engine> engine;
  std::optional<keeper::testing::InlineDriverClient> driver;
  std::optional<keeper::Policies> policies;
  std::optional<keeper::ServiceDrain> drain;
  std::optional<keeper::WorkerSessions> workers;
  std::optional<keeper::BrokeredPrograms> programs;
  std::optional<keeper::Upgrades> upgrades;
  std::optional<keeper::Standbys> standbys;
  std::optional<keeper::LimitWatch> limits;
  std::optional<keeper::LiveConfig> live;
  std::optional<keeper::Management> management;
};

struct Client {
  FileDescriptor socket;
  bool manages = false;
  std::string input;  // replies, as bytes
};

class Attack {
 public:
  Attack(TheKeeper* keeper, Program* program) : keeper_(*keeper), program_(*program) {}

  void Run() {
    for (int step = 0; step < kMaxSteps && !program_.empty(); ++step) Step();
    clients_.clear();
    FakeProcesses::SetPeer(geteuid(), true);
    EndAll();
    CheckService();
  }

 private:
  void Connect(bool manages) {
    if (clients_.size() == kMaxClients) clients_.erase(clients_.begin());
    int pair[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    clients_.push_back({FileDescriptor(pair[0]), manages, {}});
    FileDescriptor server(pair[1]);
    if (manages) {
      keeper_.management->Accept(std::move(server));
    } else {
      keeper_.workers->Accept(std::move(server));
    }
  }

  Client* Pick() {
    return clients_.empty() ? nullptr
                            : &clients_[program_.Below(static_cast<uint32_t>(clients_.size()))];
  }

  void Write(Client& client, std::string_view bytes) {
    for (int attempt = 0; attempt < 2000 && !bytes.empty(); ++attempt) {
      const ssize_t sent =
          send(client.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EAGAIN) {
        return;
      }
      if (!bytes.empty()) Poll();
    }
  }

  void Poll() {
    keeper_.loop.restart();
    keeper_.loop.poll();
  }

  void WriteFrame(Client& client, std::string_view body) {
    uint32_t length = static_cast<uint32_t>(body.size());
    if (program_.Byte() > 250) length = static_cast<uint32_t>(program_.Near(length));
    std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
    Write(client, frame.append(body));
  }

  // Text of a request; now and then enough to fill every frame that repeats it.
  std::string Text() {
    const uint8_t how = program_.Byte();
    if (how == 255 && program_.Byte() > 247)
      return std::string((size_t{15} << 20) + 999 * size_t{1024}, 'x');
    if (how > 250) return std::string(size_t{how} << 10, 'y');
    return std::string(program_.Block(how % 32));
  }

  std::string Host() { return program_.Byte() < 220 ? "127.0.0.1" : Text(); }
  uint32_t Port() {
    return program_.Byte() < 200 ? FakeProcesses::listening_port() : program_.Take<uint32_t>();
  }

  internal::WorkerRequest WorkerRequest() {
    internal::WorkerRequest request;
    switch (program_.Below(10)) {
      case 0:
      case 1:
      case 2: {
        internal::AttachArena* attach = request.mutable_attach();
        attach->set_service(program_.Byte() < 250 ? "kv" : Text());
        attach->set_protocol_version(program_.Byte() < 250 ? kProtocolVersion : program_.Byte());
        attach->set_layout_version(program_.Byte() < 250 ? arena::kLayoutVersion : program_.Byte());
        attach->set_name(Text());
        attach->set_version(Text());
        attach->set_library_release(attach->version());
        attach->set_reads_state_version_min(program_.Below(4));
        attach->set_reads_state_version_max(program_.Below(4));
        attach->set_writes_state_version(program_.Below(4));
        break;
      }
      case 3:
        request.mutable_set_ready();
        break;
      case 4:
        request.mutable_listen()->set_host(Host());
        request.mutable_listen()->set_port(program_.Byte() < 200 ? 0 : program_.Take<uint32_t>());
        break;
      case 5: {
        internal::ConnectRequest* connect = request.mutable_connect();
        connect->set_host(Host());
        connect->set_port(Port());
        connect->set_shard(program_.Byte() < 250 ? program_.Below(kShards + 1)
                                                 : program_.Take<uint32_t>());
        connect->set_private_data(std::string(program_.Block(program_.Below(80))));
        break;
      }
      case 6: {
        internal::GrantRequest* grant = request.mutable_grant();
        grant->set_offset(program_.Near(program_.Flag() ? 1 << 16 : 0));
        grant->set_length(program_.Near(program_.Flag() ? 1 << 16 : 8));
        grant->set_remote_read(program_.Flag());
        grant->set_remote_write(program_.Flag());
        break;
      }
      case 7:
        request.mutable_revoke()->set_grant(static_cast<uint32_t>(program_.Near(0)));
        break;
      case 8:
        request.mutable_new_token();
        break;
      default:
        request.mutable_detach();
    }
    return request;
  }

  uint64_t WorkerId() {
    return program_.Byte() < 240 ? program_.Below(8) : program_.Take<uint64_t>();
  }

  // Another one each time, some of them invalid; by no byte of the program, whose inputs were made
  // before there were any.
  void FillPolicy(v1::Policy* policy) const {
    v1::Quota* const of_worker = policy->mutable_worker();
    of_worker->set_connections(static_cast<uint32_t>(requests_ / 2 % 5));
    of_worker->set_grants(static_cast<uint32_t>(requests_ / 3 % 4));
    of_worker->set_granted_bytes(requests_ / 2 % 3 * 4096);
    of_worker->set_listeners(static_cast<uint32_t>(requests_ / 5 % 3));
    policy->mutable_service()->set_posts_per_second(requests_ % 8 == 0 ? 1000 : 0);
    if (requests_ % 6 == 0) policy->add_p_keys(static_cast<uint32_t>(requests_ * 4096));
    if (requests_ % 10 == 0) policy->add_gids("127.0.0.1");
    policy->set_hot_standbys(static_cast<uint32_t>(requests_ / 2 % 8));
    policy->set_on_hang(v1::OnHang(requests_ / 4 % 3));
  }

  internal::ManagementRequest ManagementRequest() {
    internal::ManagementRequest request;
    request.set_id(++requests_);
    switch (program_.Below(11)) {
      case 0:
        request.mutable_describe();
        break;
      case 1: {
        internal::ListConnections* list = request.mutable_list_connections();
        list->set_shard(static_cast<int32_t>(program_.Near(0)));
        list->set_start(static_cast<uint32_t>(program_.Near(0)));
        list->set_limit(static_cast<uint32_t>(program_.Near(0)));
        break;
      }
      case 2:
      case 3: {
        internal::Handoff* handoff = request.mutable_handoff();
        for (uint32_t i = program_.Below(4); i > 0; --i) {
          handoff->add_shards(static_cast<uint32_t>(program_.Near(0)));
        }
        handoff->set_to_worker_id(WorkerId());
        handoff->set_timeout_ms(program_.Byte());
        break;
      }
      case 4:
        request.mutable_kill_worker()->set_worker_id(WorkerId());
        break;
      case 5:
        request.mutable_redeem_token()->set_token(program_.Flag() ? token_ : Text());
        break;
      case 6:
        request.mutable_subscribe()->set_after_sequence(program_.Near(0));
        break;
      case 7: {
        v1::UpgradePlan* plan = request.mutable_upgrade();
        plan->set_exec(program_.Byte() < 220 ? "/nowhere/worker" : Text());
        for (uint32_t i = program_.Below(4); i > 0; --i) plan->add_arguments(Text());
        plan->set_replace_arguments(program_.Flag());
        plan->set_workers(program_.Byte() < 200 ? program_.Below(3) : program_.Take<uint32_t>());
        plan->set_ready_timeout_ms(program_.Byte());
        plan->set_watch_window_ms(program_.Byte());
        plan->set_no_rollback(program_.Flag());
        break;
      }
      case 8:
        request.mutable_rollback()->set_ready_timeout_ms(program_.Byte());
        request.mutable_rollback()->set_watch_window_ms(program_.Byte());
        request.mutable_rollback()->set_no_rollback(program_.Flag());
        break;
      case 9:
        if (requests_ % 2 == 0) {
          FillPolicy(request.mutable_set_policy()->mutable_policy());
        } else {
          request.mutable_list_upgrades();
        }
        break;
      default:
        request.mutable_control_stream()->set_worker_id(WorkerId());
        request.mutable_control_stream()->set_open(program_.Flag());
    }
    return request;
  }

  void Request() {
    Client* client = Pick();
    if (client == nullptr) return;
    std::string body;
    (program_.Byte() < 250) == client->manages ? ManagementRequest().SerializeToString(&body)
                                               : WorkerRequest().SerializeToString(&body);
    if (program_.Byte() > 240 && !body.empty()) {
      body[program_.Below(255) % body.size()] = static_cast<char>(program_.Byte());
    }
    WriteFrame(*client, body);
  }

  // What came for a client is frames of its protocol.
  void Read(Client& client) {
    char buffer[65536];
    for (;;) {
      iovec data = {buffer, sizeof(buffer)};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)];
      msghdr header = {};
      header.msg_iov = &data;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      const ssize_t got = recvmsg(client.socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got <= 0) break;
      for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
        const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        BATON_CHECK(!client.manages && count == 4);
        for (size_t i = 0; i < count; ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
          close(fd);
        }
      }
      client.input.append(buffer, static_cast<size_t>(got));
    }
    size_t at = 0;
    while (client.input.size() - at >= sizeof(uint32_t)) {
      uint32_t length;
      std::memcpy(&length, client.input.data() + at, sizeof(length));
      BATON_CHECK(length <= kMaxFrameBytes);
      if (client.input.size() - at - sizeof(length) < length) break;
      const char* body = client.input.data() + at + sizeof(length);
      if (client.manages) {
        internal::ManagementReply reply;
        BATON_CHECK(reply.ParseFromArray(body, static_cast<int>(length)));
      } else {
        internal::WorkerReply reply;
        BATON_CHECK(reply.ParseFromArray(body, static_cast<int>(length)));
        BATON_CHECK(reply.status_code() >= 0 && reply.status_code() <= 16);
        if (reply.has_attached()) token_ = reply.attached().token();
        if (reply.has_token()) token_ = reply.token().token();
      }
      at += sizeof(length) + length;
    }
    client.input.erase(0, at);
  }

  void SendDescriptors(Client& client) {
    const size_t count = 1 + program_.Below(20);
    std::vector<int> descriptors(count, STDIN_FILENO);
    char byte = static_cast<char>(program_.Byte());
    iovec data = {&byte, 1};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(item), descriptors.data(), sizeof(int) * count);
    (void)!sendmsg(client.socket.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void Step() {
    switch (program_.Below(15)) {
      case 0:
        Connect(false);
        break;
      case 1:
        Connect(true);
        break;
      case 2:
      case 3:
      case 4:
      case 5:
        Request();
        break;
      case 6:
        if (Client* client = Pick()) Write(*client, program_.Block(program_.Byte()));
        break;
      case 7:
        if (Client* client = Pick()) WriteFrame(*client, program_.Block(program_.Byte()));
        break;
      case 8:
        if (Client* client = Pick()) Read(*client);
        break;
      case 9:
        if (Client* client = Pick()) {
          if (program_.Flag()) {
            shutdown(client->socket.get(), SHUT_WR);
          } else {
            clients_.erase(clients_.begin() + (client - clients_.data()));
          }
        }
        break;
      case 10:
        if (Client* client = Pick()) SendDescriptors(*client);
        break;
      case 11: {
        // The locks of a worker's threads: held, given up, or marked by the kernel.
        arena::WorkerSlot& slot = keeper_.arena_->worker(program_.Below(4));
        uint32_t& word = slot.thread_locks[program_.Below(arena::kThreadLocks)].futex;
        const uint32_t values[] = {0,
                                   77,
                                   77 | FUTEX_WAITERS,
                                   FUTEX_OWNER_DIED,
                                   78 | FUTEX_OWNER_DIED,
                                   program_.Take<uint32_t>()};
        arena::StoreRelaxed(word, values[program_.Below(6)]);
        break;
      }
      case 12:
        // What a worker says of itself in the arena.
        arena::StoreRelaxed(keeper_.arena_->worker(program_.Below(4)).unhealthy, program_.Below(3));
        break;
      case 13:
        if (program_.Flag()) {
          FakeProcesses::KillOne(program_.Below(16));
        } else {
          FakeProcesses::SetPeer(program_.Flag() ? geteuid() : program_.Byte(), program_.Flag());
        }
        break;
      default:
        keeper_.Turn();
    }
    Poll();
  }

  template <typename Done>
  void Until(Done done) {
    for (int i = 0; !done(); ++i) {
      BATON_CHECK(i < kPatience);
      keeper_.Turn();
      if (i > 50) sched_yield();  // for a timer, mostly there is nothing to wait for
    }
  }

  // When all processes are dead, no worker is left, no upgrade is under way and nobody owns a
  // shard.
  void EndAll() {
    if (!keeper_.upgrades->CheckIdle().ok()) keeper_.upgrades->Rollback({}, [](const auto&) {});
    Until([&] {
      FakeProcesses::KillAll();
      return keeper_.workers->Describe().empty() && keeper_.upgrades->CheckIdle().ok();
    });
    keeper_.engine->Run([&] {
      for (uint32_t shard = 0; shard < kShards; ++shard) {
        BATON_CHECK(!keeper_.engine->succession().ownership(shard).owned());
        BATON_CHECK(keeper_.engine->succession().ownership(shard).CanGive());
      }
    });
  }

  // A correct worker is still served, and becomes the owner of everything; control is, too.
  void CheckService() {
    Connect(false);
    Connect(true);
    internal::WorkerRequest attach, ready;
    attach.mutable_attach()->set_service("kv");
    attach.mutable_attach()->set_protocol_version(kProtocolVersion);
    attach.mutable_attach()->set_layout_version(arena::kLayoutVersion);
    ready.mutable_set_ready();
    MessageChannel worker(std::move(clients_[0].socket));
    MessageChannel control(std::move(clients_[1].socket));
    BATON_CHECK(worker.Enqueue(attach).ok() && worker.Enqueue(ready).ok());
    internal::WorkerReply attached;
    Until([&] {
      BATON_CHECK(worker.Fill().ok());
      return worker.NextFrame(&attached).value();
    });
    BATON_CHECK(attached.status_code() == 0 && attached.has_attached());
    const uint64_t id = attached.attached().worker_id();
    Until([&] {
      uint32_t owned = 0;
      keeper_.engine->Run([&] {
        for (uint32_t shard = 0; shard < kShards; ++shard) {
          owned += keeper_.engine->succession().ownership(shard).owner_id() == id;
        }
      });
      return owned == kShards;
    });
    internal::ManagementRequest describe, subscribe;
    describe.set_id(1);
    describe.mutable_describe();
    subscribe.set_id(2);
    subscribe.mutable_subscribe();
    BATON_CHECK(control.Enqueue(subscribe).ok() && control.Enqueue(describe).ok());
    internal::ManagementReply reply;
    Until([&] {
      BATON_CHECK(control.Fill().ok());
      while (control.NextFrame(&reply).value()) {
        if (reply.has_description()) return true;
      }
      return false;
    });
    BATON_CHECK(reply.description().workers_size() == 1);
    BATON_CHECK(reply.description().workers(0).id() == id);
    EndAll();
  }

  TheKeeper& keeper_;
  Program& program_;
  std::vector<Client> clients_;
  uint64_t requests_ = 0;
  std::string token_;
};

}  // namespace

void KeeperSockets(const uint8_t* data, size_t size) {
  static const bool quiet =
      (spdlog::set_level(spdlog::level::off), google::protobuf::SetLogHandler(nullptr), true);
  (void)quiet;
  static arena::Arena arena = arena::Arena::Create(ShapeOf(Config().service()), "kv").value();
  const FakeProcesses::Guard processes;
  Program program(data, size);
  TheKeeper keeper(&arena);
  Attack(&keeper, &program).Run();
}

}  // namespace baton::fuzz
