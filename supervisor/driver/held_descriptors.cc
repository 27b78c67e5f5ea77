#include "supervisor/driver/held_descriptors.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/program_start.h"
#include "lib/base/status_macros.h"
#include "lib/channel/carried_status.h"

namespace baton::driver_process {
namespace {

// More than batond keeps for one service.
constexpr size_t kMostEntries = 64;

absl::StatusOr<std::vector<FileDescriptor>> CopiesOf(const std::vector<int>& descriptors) {
  std::vector<FileDescriptor> copies;
  for (const int descriptor : descriptors) {
    copies.emplace_back(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!copies.back()) return ErrnoStatus(errno, "a copy (see RLIMIT_NOFILE)");
  }
  return copies;
}

std::vector<int> NumbersOf(const std::vector<FileDescriptor>& descriptors) {
  std::vector<int> numbers;
  for (const FileDescriptor& descriptor : descriptors) numbers.push_back(descriptor.get());
  return numbers;
}

std::string Entry(const std::string& name, size_t number) {
  return absl::StrCat(name, ".", number);
}

}  // namespace

std::unique_ptr<HeldDescriptors> HeldDescriptors::OfBatond() {
  FileDescriptor socket = GivenDescriptor("BATON_STORE_FD");
  return socket ? std::make_unique<HeldDescriptors>(std::move(socket)) : nullptr;
}

absl::Status HeldDescriptors::TakeReply(int timeout_ms) {
  internal::StoreReply reply;
  BATON_RETURN_IF_ERROR(channel_.Receive(&reply, timeout_ms));
  late_ = false;
  if (const Done done = std::exchange(done_, nullptr)) done(StatusIn(reply));
  AskNext();
  return absl::OkStatus();
}

void HeldDescriptors::AskNext() {
  while (!late_ && !waiting_.empty()) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    const absl::Status status = channel_.Enqueue(next.request, NumbersOf(next.descriptors));
    late_ = status.ok();
    if (!late_) {
      next.done(status);
    } else {
      done_ = std::move(next.done);
    }
  }
}

void HeldDescriptors::TakeReplies() {
  absl::Status status;
  while (late_ && status.ok()) status = TakeReply(/*timeout_ms=*/0);
  if (status.ok() || absl::IsDeadlineExceeded(status)) return;
  late_ = false;
  if (const Done done = std::exchange(done_, nullptr)) done(status);
  AskNext();  // in vain, which each is told
}

void HeldDescriptors::PutSoon(const std::string& name, const std::vector<int>& descriptors,
                              Done done) {
  Waiting put;
  put.request.mutable_put()->set_name(Entry(name, 0));
  const auto former = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
    return one.request.put().name() == put.request.put().name();
  });
  if (former == waiting_.end() && waiting_.size() == kMostWaiting) {
    return done(absl::ResourceExhaustedError(
        absl::StrCat(kMostWaiting, " requests wait for its answer to another")));
  }
  auto copies = CopiesOf(descriptors);
  absl::Status status = copies.status();
  if (status.ok()) status = Note(put.request.put().name(), descriptors);
  if (!status.ok()) return done(status);
  put.descriptors = *std::move(copies);
  put.done = std::move(done);
  if (former == waiting_.end()) {
    waiting_.push_back(std::move(put));
  } else {
    put.done = [first = std::move(former->done), second = std::move(put.done)](const auto& what) {
      first(what);
      second(what);
    };
    *former = std::move(put);
  }
  AskNext();
}

absl::StatusOr<internal::StoreReply> HeldDescriptors::Ask(const internal::StoreRequest& request,
                                                          const std::vector<int>& sent,
                                                          std::vector<FileDescriptor>* received) {
  // Before anything else is asked: what came with them is read with them.
  while (late_) BATON_RETURN_IF_ERROR(TakeReply(timeout_ms_));
  const absl::Status asked = channel_.Send(request, sent, timeout_ms_);
  late_ = asked.ok() || absl::IsDeadlineExceeded(asked);
  BATON_RETURN_IF_ERROR(asked);
  internal::StoreReply reply;
  BATON_RETURN_IF_ERROR(channel_.Receive(&reply, timeout_ms_, received));
  late_ = false;
  BATON_RETURN_IF_ERROR(StatusIn(reply));
  return reply;
}

absl::Status HeldDescriptors::Note(const std::string& entry, const std::vector<int>& descriptors) {
  BATON_ASSIGN_OR_RETURN(copies_[entry], CopiesOf(descriptors));
  if (descriptors.empty()) copies_.erase(entry);
  return absl::OkStatus();
}

absl::Status HeldDescriptors::Reconnect(FileDescriptor socket) {
  channel_ = MessageChannel(std::move(socket));
  late_ = false;
  const absl::Status lost = absl::UnavailableError("batond is gone; another has taken its place");
  if (const Done done = std::exchange(done_, nullptr)) done(lost);
  for (const Waiting& one : std::exchange(waiting_, {})) one.done(lost);
  for (const auto& [entry, descriptors] : copies_) {
    internal::StoreRequest request;
    request.mutable_put()->set_name(entry);
    BATON_RETURN_IF_ERROR(Ask(request, NumbersOf(descriptors), nullptr).status());
  }
  return absl::OkStatus();
}

absl::Status HeldDescriptors::Put(const std::string& name, const std::vector<int>& descriptors) {
  constexpr size_t kPerEntry = kMaxFrameDescriptors;
  for (size_t first = 0; first < descriptors.size(); first += kPerEntry) {
    const size_t end = std::min(first + kPerEntry, descriptors.size());
    internal::StoreRequest request;
    request.mutable_put()->set_name(Entry(name, first / kPerEntry));
    const std::vector<int> part(descriptors.begin() + static_cast<ptrdiff_t>(first),
                                descriptors.begin() + static_cast<ptrdiff_t>(end));
    BATON_RETURN_IF_ERROR(Note(request.put().name(), part));
    BATON_RETURN_IF_ERROR(Ask(request, part, nullptr).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FileDescriptor>> HeldDescriptors::Get(const std::string& name) {
  std::vector<FileDescriptor> all;
  for (size_t number = 0; number < kMostEntries; ++number) {
    internal::StoreRequest request;
    request.mutable_get()->set_name(Entry(name, number));
    std::vector<FileDescriptor> part;
    const absl::Status status = Ask(request, {}, &part).status();
    if (absl::IsNotFound(status)) break;
    BATON_RETURN_IF_ERROR(status);
    BATON_RETURN_IF_ERROR(Note(request.get().name(), NumbersOf(part)));
    for (FileDescriptor& descriptor : part) all.push_back(std::move(descriptor));
  }
  return all;
}

absl::Status HeldDescriptors::CopyAll() {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> entries, List());
  for (const std::string& entry : entries) {
    internal::StoreRequest request;
    request.mutable_get()->set_name(entry);
    std::vector<FileDescriptor> copies;
    BATON_RETURN_IF_ERROR(Ask(request, {}, &copies).status());
    copies_[entry] = std::move(copies);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> HeldDescriptors::List() {
  internal::StoreRequest request;
  request.mutable_list();
  BATON_ASSIGN_OR_RETURN(const internal::StoreReply reply, Ask(request, {}, nullptr));
  return std::vector<std::string>(reply.names().begin(), reply.names().end());
}

absl::Status HeldDescriptors::DropEntry(const std::string& entry) {
  internal::StoreRequest request;
  request.mutable_drop()->set_name(entry);
  copies_.erase(entry);
  return Ask(request, {}, nullptr).status();
}

absl::Status HeldDescriptors::Drop(const std::string& name) { return DropEntry(Entry(name, 0)); }

absl::Status HeldDescriptors::DropAll(const std::string& but) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> entries, List());
  for (const std::string& entry : entries) {
    if (!but.empty() && entry.rfind(but + ".", 0) == 0) continue;
    BATON_RETURN_IF_ERROR(DropEntry(entry));
  }
  return absl::OkStatus();
}

}  // namespace baton::driver_process
