#include "worker/examples/memd/memd_checker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/status.h"

namespace baton::memd {
namespace {

constexpr uint64_t kLeastBytes = 4096;
// Words at the beginning of the memory.
constexpr uint64_t kCounter = 0, kSwapped = 8, kWordsEnd = 64;
constexpr uint64_t kMostLength = 16 * 1024;  // of a READ or WRITE
// Requests are rarer than accesses, as in a client that has work to do: one in so many rounds.
constexpr uint64_t kNoticeRounds = 4, kLeaseRounds = 8, kRenewRounds = 16;

absl::Status Wrong(std::string_view what, uint64_t found, uint64_t expected) {
  return absl::DataLossError(absl::StrCat(View(what), " is ", found, ", and has to be ", expected));
}

}  // namespace

absl::StatusOr<MemdChecker> MemdChecker::Begin(MemdClient* client,
                                               const MemdCheckerOptions& options) {
  if (options.bytes < kLeastBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes: ", options.bytes, ", at least ", kLeastBytes));
  }
  AllocateOptions wanted;
  wanted.bytes = options.bytes;
  wanted.milliseconds = options.milliseconds;
  BATON_ASSIGN_OR_RETURN(const RemoteLease lease, client->Allocate(wanted));
  MemdChecker checker(client, options, lease);
  BATON_RETURN_IF_ERROR(checker.Compare(0, options.bytes));  // zeros
  return checker;
}

absl::Status MemdChecker::Round() {
  BATON_RETURN_IF_ERROR(CheckAtomics());
  BATON_RETURN_IF_ERROR(CheckBytes());
  ++rounds_;
  if (rounds_ % kNoticeRounds == 0) BATON_RETURN_IF_ERROR(CheckNotices());
  if (rounds_ % kLeaseRounds == 0) BATON_RETURN_IF_ERROR(CheckAnotherLease());
  if (rounds_ % kRenewRounds != 0) return absl::OkStatus();
  const RemoteLease before = lease_;
  BATON_ASSIGN_OR_RETURN(lease_, client_->Renew(lease_.id, options_.milliseconds));
  if (lease_.memory.rkey != before.memory.rkey) {
    return Wrong("the rkey after a renewal", lease_.memory.rkey, before.memory.rkey);
  }
  if (lease_.memory.address == before.memory.address) return absl::OkStatus();
  return Wrong("the address after a renewal", lease_.memory.address, before.memory.address);
}

// One that is lost or doubled shows in all that follow.
absl::Status MemdChecker::CheckAtomics() {
  BATON_ASSIGN_OR_RETURN(const uint64_t counter, client_->FetchAdd(lease_.memory, kCounter, 1));
  if (counter != rounds_) return Wrong("the counter", counter, rounds_);
  BATON_ASSIGN_OR_RETURN(uint64_t swapped,
                         client_->CompareSwap(lease_.memory, kSwapped, swaps_, swaps_ + 1));
  if (swapped != swaps_) return Wrong("the word before a swap", swapped, swaps_);
  ++swaps_;
  // This one finds another value, and changes nothing.
  BATON_ASSIGN_OR_RETURN(swapped,
                         client_->CompareSwap(lease_.memory, kSwapped, swaps_ - 1, ~uint64_t{0}));
  if (swapped != swaps_) return Wrong("the word after a swap", swapped, swaps_);
  if (!options_.shared) return absl::OkStatus();
  return client_->FetchAdd(*options_.shared, 0, 1).status();
}

absl::Status MemdChecker::CheckBytes() {
  const auto [offset, length] = DrawRange();
  const std::vector<uint8_t> bytes = DrawBytes(length);
  BATON_RETURN_IF_ERROR(client_->Write(lease_.memory, offset, bytes));
  std::copy(bytes.begin(), bytes.end(), model_.begin() + static_cast<ptrdiff_t>(offset));
  const auto [other, other_length] = DrawRange();
  return Compare(other, other_length);
}

absl::Status MemdChecker::CheckNotices() {
  const auto [offset, length] = DrawRange();
  const std::vector<uint8_t> bytes = DrawBytes(length);
  BATON_RETURN_IF_ERROR(client_->Notify(lease_, offset, bytes));
  std::copy(bytes.begin(), bytes.end(), model_.begin() + static_cast<ptrdiff_t>(offset));
  ++notices_;
  BATON_ASSIGN_OR_RETURN(const RemoteLease lease, client_->Stat(lease_.id));
  if (lease.notices != notices_) return Wrong("the number of notices", lease.notices, notices_);
  return absl::OkStatus();
}

// Leases memory, asks for the same again, and frees it twice.
absl::Status MemdChecker::CheckAnotherLease() {
  AllocateOptions wanted;
  wanted.bytes = 1 + random_() % kMostLength;
  wanted.milliseconds = options_.milliseconds;
  wanted.rights = kRead | kWrite;
  wanted.number = client_->NewNumber();
  BATON_ASSIGN_OR_RETURN(const RemoteLease lease, client_->Allocate(wanted));
  BATON_ASSIGN_OR_RETURN(const RemoteLease same, client_->Allocate(wanted));
  if (same.id != lease.id) return Wrong("the lease of a repeated request", same.id, lease.id);
  std::vector<uint8_t> bytes(wanted.bytes);
  BATON_RETURN_IF_ERROR(client_->Read(lease.memory, 0, absl::MakeSpan(bytes)));
  const auto nonzero =
      std::find_if(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 0; });
  if (nonzero != bytes.end()) return Wrong("a byte of new memory", *nonzero, 0);
  // The next lease of this memory must not show them.
  BATON_RETURN_IF_ERROR(client_->Write(lease.memory, 0, DrawBytes(wanted.bytes)));
  BATON_RETURN_IF_ERROR(client_->Free(lease.id));
  return client_->Free(lease.id);
}

absl::Status MemdChecker::Compare(uint64_t offset, uint64_t length) {
  std::vector<uint8_t> bytes(length);
  BATON_RETURN_IF_ERROR(client_->Read(lease_.memory, offset, absl::MakeSpan(bytes)));
  const auto expected = model_.begin() + static_cast<ptrdiff_t>(offset);
  const auto [found, right] = std::mismatch(bytes.begin(), bytes.end(), expected);
  if (found == bytes.end()) return absl::OkStatus();
  return Wrong(absl::StrCat("the byte at ", offset + static_cast<uint64_t>(found - bytes.begin())),
               *found, *right);
}

absl::Status MemdChecker::End() {
  // The words are as atomics have left them.
  std::memcpy(&model_[kCounter], &rounds_, sizeof(rounds_));
  std::memcpy(&model_[kSwapped], &swaps_, sizeof(swaps_));
  BATON_RETURN_IF_ERROR(Compare(0, model_.size()));
  return client_->Free(lease_.id);
}

std::pair<uint64_t, uint64_t> MemdChecker::DrawRange() {
  const uint64_t offset = kWordsEnd + random_() % (model_.size() - kWordsEnd);
  const uint64_t most = std::min<uint64_t>(kMostLength, model_.size() - offset);
  return {offset, 1 + random_() % most};
}

std::vector<uint8_t> MemdChecker::DrawBytes(uint64_t length) {
  std::vector<uint8_t> bytes(length);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
  return bytes;
}

}  // namespace baton::memd
