#include "tests/lib/nic/harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "tests/harness/wait_until.h"

namespace baton::nic {
namespace {

using verbs::mlx5::DoorbellPage;
using verbs::mlx5::WholeLines;

constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(30);

static_assert(kSealed == (F_SEAL_SHRINK | F_SEAL_GROW));

template <typename Value>
Value Must(absl::StatusOr<Value> value) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  BATON_CHECK(value.ok());
  return *std::move(value);
}

void MakePair(FileDescriptor* one, FileDescriptor* other) {
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  one->Reset(ends[0]);
  other->Reset(ends[1]);
}

[[noreturn]] void Serve(std::vector<FileDescriptor> sockets) {
  const std::unique_ptr<Nic> nic = Must(Nic::Make(WithLoopback(), [](const std::string& what) {
    std::fprintf(stderr, "the NIC complains: %s\n", what.c_str());
    std::abort();
  }));
  for (FileDescriptor& socket : sockets) BATON_CHECK(nic->Add(std::move(socket)).ok());
  for (;;) {
    while (nic->Progress() || !nic->PrepareToWait()) {
    }
    pollfd entry = {nic->event_fd(), POLLIN, 0};
    (void)poll(&entry, 1, -1);
  }
}

}  // namespace

SharedFile::SharedFile(uint64_t bytes, int seals)
    : bytes_(bytes), fd_(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  BATON_CHECK(fd_ && ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
  BATON_CHECK(fcntl(fd_.get(), F_ADD_SEALS, seals) == 0);
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  BATON_CHECK(begin != MAP_FAILED);
  begin_ = static_cast<uint8_t*>(begin);
}

SharedFile::~SharedFile() { munmap(begin_, bytes_); }

EmbeddedNic::EmbeddedNic(const verbs::soft::SoftDeviceOptions& options)
    : nic_(Must(
          Nic::Make(options, [this](const std::string& what) { complaints_.push_back(what); }))) {}

EmbeddedNic::~EmbeddedNic() {
  for (const std::string& what : complaints_) ADD_FAILURE() << "the NIC complains: " << what;
}

FileDescriptor EmbeddedNic::Connect() {
  FileDescriptor ours;
  FileDescriptor theirs;
  MakePair(&ours, &theirs);
  BATON_CHECK(nic_->Add(std::move(theirs)).ok());
  return ours;
}

std::unique_ptr<Client> EmbeddedNic::Open() {
  return Must(Client::Open(Connect(), [this] { nic_->Progress(); }));
}

bool EmbeddedNic::TurnUntil(const std::function<bool()>& done) {
  const uint64_t deadline =
      MonotonicNanoseconds() + static_cast<uint64_t>(harness::Patient(kPatience).count());
  while (!done()) {
    if (MonotonicNanoseconds() > deadline) return false;
    nic_->Progress();
  }
  return true;
}

NicProcess::NicProcess(int clients) {
  std::vector<FileDescriptor> theirs(static_cast<size_t>(clients));
  ends_.resize(theirs.size());
  for (size_t i = 0; i < theirs.size(); ++i) MakePair(&ends_[i], &theirs[i]);
  pid_ = fork();
  BATON_CHECK(pid_ >= 0);
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ends_.clear();
  Serve(std::move(theirs));
}

NicProcess::~NicProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::unique_ptr<Client> NicProcess::Open() {
  BATON_CHECK(!ends_.empty());
  FileDescriptor end = std::move(ends_.back());
  ends_.pop_back();
  return Must(Client::Open(std::move(end)));
}

void NicProcess::Stop() {
  int status = 0;
  BATON_CHECK(kill(pid_, SIGSTOP) == 0 && waitpid(pid_, &status, WUNTRACED) == pid_);
  BATON_CHECK(WIFSTOPPED(status));
}

void NicProcess::Continue() { BATON_CHECK(kill(pid_, SIGCONT) == 0); }

absl::Status ConnectQueuePair(Client* client, uint32_t number, uint32_t peer,
                              uint32_t rnr_retry_count, uint32_t rnr_timer_us) {
  control::Modify message;
  message.number = number;
  message.state = static_cast<uint32_t>(verbs::QueuePairState::kReadyToSend);
  message.peer = peer;
  message.rnr_retry_count = rnr_retry_count;
  message.rnr_timer_us = rnr_timer_us;
  return client->calls().Call(message).status();
}

Shard::Shard(Client* client, const Options& options)
    : client_(client),
      options_(options),
      queue_layout_{options.entry_count},
      layout_{options.send_slots, options.receive_slots, 32},
      data_at_(PlaceOf(options.queue_pairs)),
      file_(data_at_ + options.data_bytes) {
  file_number_ = Must(client->AddFile(file_.fd()));
  const auto place = [this](uint64_t offset) { return control::Place{file_number_, 0, offset}; };
  key_ =
      Must(client->AddRegion(place(data_at_), options.data_bytes, options.address, options.access));
  reg_ = Must(client->AddRegister(place(0)));
  channel_ = Must(client->AddChannel());
  queue_number_ = Must(client->AddCompletionQueue(place(sizeof(DoorbellPage)), queue_layout_,
                                                  reg_.number, channel_.number));
  for (uint32_t i = 0; i < options.queue_pairs; ++i) {
    numbers_.push_back(Must(client->AddQueuePair(
        place(PlaceOf(i)), layout_,
        {.reg = reg_.number, .send_queue = queue_number_, .receive_queue = queue_number_})));
  }
  for (uint32_t i = 0; i < options.queue_pairs; ++i) {
    const absl::Status connected = ConnectQueuePair(client, numbers_[i], numbers_[i ^ 1],
                                                    options.rnr_retry_count, /*rnr_timer_us=*/10);
    BATON_CHECK(connected.ok());
  }
}

uint64_t Shard::PlaceOf(size_t queue_pair) const {
  return WholeLines(sizeof(DoorbellPage) + queue_layout_.bytes()) + queue_pair * layout_.bytes();
}

DoorbellPage* Shard::page() const { return reinterpret_cast<DoorbellPage*>(file_.begin()); }

Driver::Driver(Shard* shard)
    : commands_(shard->client_),
      bell_(shard->page(), shard->wake()),
      queue_(shard->queue_layout_.At(shard->file_.begin() + sizeof(DoorbellPage)),
             shard->queue_number_, &bell_) {
  for (size_t i = 0; i < shard->numbers_.size(); ++i) {
    uint8_t* const begin = shard->queue_pair(i);
    queue_.Add(shard->layout_.CompletingAt(begin, shard->numbers_[i], static_cast<uint16_t>(i)));
    queue_pairs_.push_back(std::make_unique<verbs::mlx5::QueuePair>(
        shard->layout_.MemoryAt(begin), shard->numbers_[i], kSendLimits, &commands_, &bell_));
    queue_pairs_.back()->NoteConnected(true);
  }
}

void Driver::TakeOver() {
  bell_.TakeOver();
  queue_.TakeOver();
  for (const auto& queue_pair : queue_pairs_) {
    queue_pair->TakeOver();
    queue_pair->NoteConnected(true);
  }
}

void Driver::Send(size_t index, const verbs::SendRequest& request) {
  size_t posted = 0;
  const absl::Status status = queue_pairs_[index]->PostSend({&request, 1}, &posted);
  ASSERT_TRUE(status.ok()) << status;
}

void Driver::Receive(size_t index, uint64_t wr_id, const verbs::ScatterGather& sge) {
  verbs::ReceiveRequest request;
  request.wr_id = wr_id;
  request.sges = {&sge, 1};
  size_t posted = 0;
  const absl::Status status = queue_pairs_[index]->PostReceive({&request, 1}, &posted);
  ASSERT_TRUE(status.ok()) << status;
}

verbs::SendRequest RequestOf(verbs::Opcode opcode, uint64_t wr_id, const verbs::ScatterGather& sge,
                             uint64_t remote_address, uint32_t rkey) {
  verbs::SendRequest request;
  request.opcode = opcode;
  request.wr_id = wr_id;
  request.sges = {&sge, 1};
  request.remote_address = remote_address;
  request.rkey = rkey;
  return request;
}

}  // namespace baton::nic
