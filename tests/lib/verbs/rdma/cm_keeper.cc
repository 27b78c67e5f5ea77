// A keeper for cm_succession_test.cc: it has connection ids in an rdma_cm file of its own, and does
// one order after the other. It has no device, no queue and no librdmacm. It is executed, with its
// socket as the first argument; the second is the rdma_cm file that it had before it executed
// itself in place.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/status.h"
#include "tests/lib/verbs/rdma/cm_message.h"

namespace baton::verbs::rdma {
namespace {

using Files = std::vector<FileDescriptor>;

class Keeper {
 public:
  Keeper(std::string program, int socket) : program_(std::move(program)), socket_(socket) {}
  void GoOnWith(int file) { file_.emplace(FileDescriptor(file)); }
  void Run() {
    CmMessage message;
    Files files;
    while (ReceiveMessage(socket_, &message, &files)) {
      std::vector<int> given;
      const absl::Status status = Do(&message, files, &given);
      message.error = status.ok() ? 0 : CmErrno(status) != 0 ? CmErrno(status) : last_error_;
      if (!status.ok()) Say(std::string(status.message()), &message);
      if (!SendMessage(socket_, message, given)) return;
      files.clear();
    }
  }

 private:
  static void Say(const std::string& text, CmMessage* message) {
    std::snprintf(message->text, sizeof(message->text), "%s", text.c_str());
  }
  absl::Status OfErrno(int error, const char* what) {
    if (error == 0) return absl::OkStatus();
    last_error_ = error;
    return ErrnoStatus(error, what);
  }
  template <typename Value, typename Into>
  static absl::Status Store(const absl::StatusOr<Value>& from, Into* to) {
    if (from.ok()) *to = Into(*from);
    return from.status();
  }

  absl::Status Do(CmMessage* m, Files& files, std::vector<int>* given) {
    switch (m->order) {
      case CmOrder::kOpen: {
        absl::StatusOr<CmFile> file = CmFile::Open();
        if (!file.ok()) return file.status();
        file_.emplace(std::move(*file));
        given->push_back(file_->fd());
        return absl::OkStatus();
      }
      case CmOrder::kUseAnother:
        return CmFile(FileDescriptor(dup(files[0].get()))).Create(1).status();
      case CmOrder::kRenew:
        return Renew();
      case CmOrder::kMap:
        memory_bytes_ = m->number;
        memory_ = Map(files[0].get(), memory_bytes_);
        if (shared_ == nullptr) shared_ = static_cast<CmKeeperMemory*>(memory_);
        return absl::OkStatus();
      case CmOrder::kRegister:
        uverbs_ = std::move(files[0]);
        BATON_CHECK(m->number + m->region.bytes <= memory_bytes_);
        return OfErrno(
            RegisterRegion(uverbs_.get(), m->id, static_cast<const char*>(memory_) + m->number,
                           m->slot, &m->region),
            "REG_MR");
      case CmOrder::kFindRegion:
        if (!files.empty()) uverbs_ = std::move(files[0]);
        return OfErrno(QueryRegion(uverbs_.get(), m->region.handle, &m->region), "QUERY_MR");
      case CmOrder::kDestroyRegion:
        return OfErrno(DestroyRegion(uverbs_.get(), m->region.handle), "MR_DESTROY");
      default:
        return DoWithIds(m, files);
    }
  }

  absl::Status DoWithIds(CmMessage* m, const Files& files) {
    switch (m->order) {
      case CmOrder::kListen: {
        absl::Status status = Store(file_->Create(m->uid), &m->id);
        if (status.ok()) status = file_->Bind(m->id, m->address);
        return status.ok() ? file_->Listen(m->id, static_cast<uint32_t>(m->number)) : status;
      }
      case CmOrder::kPort: {
        const auto addresses = file_->QueryAddresses(m->id);
        if (addresses.ok()) m->number = FromSocketAddress(*addresses->local.get()).port;
        return addresses.status();
      }
      case CmOrder::kCreate:
        return Store(file_->Create(m->uid), &m->id);
      case CmOrder::kResolve:
        return file_->ResolveAddress(m->id, nullptr, m->address, 5000);
      case CmOrder::kRoute:
        return file_->ResolveRoute(m->id, 5000);
      case CmOrder::kConnect:
        return file_->Connect(m->id, m->parameters);
      case CmOrder::kEstablish:
        return file_->Establish(m->id);
      case CmOrder::kNext:
        return Next(m);
      case CmOrder::kAttributes:
        return Store(file_->QueuePairAttributes(m->id, m->attributes.attributes.qp_state),
                     &m->attributes);
      case CmOrder::kAccept:
        return file_->Accept(m->id, m->uid, m->parameters);
      case CmOrder::kReject:
        return file_->Reject(m->id, CmRejection::kConsumerDefined, m->text);
      case CmOrder::kDisconnect:
        return file_->Disconnect(m->id);
      case CmOrder::kDestroy:
        return Store(file_->Destroy(m->id), &m->number);
      case CmOrder::kNotify:
        return Store(file_->NotifyEstablished(m->id), &m->number);
      case CmOrder::kTake:
        return Take(files, m);
      case CmOrder::kTakeOne:
        return file_->Migrate(files[0].get(), m->id).status();
      case CmOrder::kServe:
        return Serve(files, m);
      default:
        return absl::UnimplementedError("no order of a keeper's");
    }
  }

  static void* Map(int file, uint64_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    BATON_CHECK(memory != MAP_FAILED);
    return memory;
  }

  // The file stays open, as descriptors that are not closed on execution do.
  absl::Status Renew() {
    const int file = file_->fd();
    BATON_CHECK(fcntl(file, F_SETFD, 0) == 0);
    const std::string socket = std::to_string(socket_), number = std::to_string(file);
    std::string name = program_;
    char* const arguments[] = {name.data(), const_cast<char*>(socket.data()),
                               const_cast<char*>(number.data()), nullptr};
    execv(program_.c_str(), arguments);
    return OfErrno(errno, "execv");
  }

  absl::Status Next(CmMessage* m) {
    pollfd readable = {file_->fd(), POLLIN, 0};
    (void)poll(&readable, 1, static_cast<int>(m->number));
    const absl::StatusOr<bool> some = file_->NextEvent(&shared_->slots[m->slot]);
    if (some.ok()) m->number = *some;
    return some.status();
  }

  // The listener first: the events of its requests come with it. Then all others, until there is
  // none.
  absl::Status Take(const Files& files, CmMessage* m) {
    const uint32_t listener = m->id;
    int taken = 0;
    for (const FileDescriptor& file : files) (void)file_->Migrate(file.get(), listener);
    for (bool again = true; again;) {
      again = false;
      for (const FileDescriptor& file : files) {
        for (uint32_t id = 0; id < m->number; ++id) {
          if (!file_->Migrate(file.get(), id).ok()) continue;
          again = true;
          if (taken < kMostIds) m->ids[taken++] = id;
        }
      }
    }
    m->slot = static_cast<uint32_t>(taken);
    // A listener that an earlier order took counts, too: it is in this file.
    return file_->QueryAddresses(listener).status();
  }

  // Until it is killed.
  absl::Status Serve(const Files& files, CmMessage* m) {
    const uint32_t listener = m->id;
    BATON_CHECK(m->number <= 4096);
    absl::Status taken = Take(files, m);
    if (!taken.ok()) return taken;
    std::vector<uint32_t> left(m->ids, m->ids + m->slot);
    CmMessage done;
    done.order = CmOrder::kServe;
    if (!SendMessage(socket_, done)) _exit(1);
    CmEventSlot& slot = shared_->slots[0];
    for (bool settled = false;;) {
      const absl::StatusOr<bool> some = file_->NextEvent(&slot);
      if (!some.ok()) return some.status();
      if (*some && slot.number() == CmEventNumber::kConnectRequest) {
        std::erase(left, slot.id);
        if (file_->Reject(slot.id, CmRejection::kConsumerDefined, "").ok()) ++shared_->answered;
        BATON_CHECK(file_->Destroy(slot.id).ok());
      }
      if (*some) continue;
      if (!settled) {
        // All events are read, so a request that is left was read by a predecessor.
        for (const uint32_t id : left) {
          if (id == listener) continue;
          const absl::StatusOr<CmAnswer> answer = file_->NotifyEstablished(id);
          if (!answer.ok()) return answer.status();
          if (*answer != CmAnswer::kNone) continue;
          if (file_->Reject(id, CmRejection::kConsumerDefined, "").ok()) ++shared_->left_over;
          BATON_CHECK(file_->Destroy(id).ok());
        }
        settled = true;
        continue;
      }
      pollfd readable = {file_->fd(), POLLIN, 0};
      (void)poll(&readable, 1, -1);
    }
  }

  const std::string program_;
  const int socket_;
  std::optional<CmFile> file_;
  CmKeeperMemory* shared_ = nullptr;  // what was mapped first
  void* memory_ = nullptr;
  uint64_t memory_bytes_ = 0;
  FileDescriptor uverbs_;
  int last_error_ = -1;  // of a call that is not CmFile's
};

int Main(int count, char** arguments) {
  BATON_CHECK(count >= 2);
  Keeper keeper(arguments[0], std::atoi(arguments[1]));
  if (count == 3) {
    keeper.GoOnWith(std::atoi(arguments[2]));
    CmMessage done;
    done.order = CmOrder::kRenew;
    if (!SendMessage(std::atoi(arguments[1]), done)) return 1;
  }
  keeper.Run();
  return 0;
}

}  // namespace
}  // namespace baton::verbs::rdma

int main(int count, char** arguments) { return baton::verbs::rdma::Main(count, arguments); }
