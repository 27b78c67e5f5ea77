#include "tests/worker/examples/nvmed/block_load.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/worker/examples/nvmed/nvme_host.h"

namespace baton::nvmed {
namespace {

constexpr uint32_t kInCapsuleBytes = 4096;
constexpr uint64_t kDataUnit = 512'000;  // of the health log

uint64_t UnitsOf(uint64_t bytes) { return (bytes + kDataUnit - 1) / kDataUnit; }

}  // namespace

void BlockLoad::Run() {
  status_ = Serve();
  if (status_.ok()) status_ = Verify();
  if (status_.ok()) status_ = CheckCounters();
  if (status_.ok()) status_ = host_->Disconnect();
  ended_ = true;
}

absl::Status BlockLoad::Serve() {
  BATON_ASSIGN_OR_RETURN(host_, NvmeHost::Connect(options_.host));
  while (!stop_ || !outstanding_.empty()) {
    for (size_t i = 0; i < host_->io_queues() && !stop_; ++i) {
      BATON_RETURN_IF_ERROR(Fill(host_->io(i)));
    }
    if (rests_) std::this_thread::sleep_for(kRest);
    BATON_RETURN_IF_ERROR(TakeAnswers());
  }
  return absl::OkStatus();
}

absl::Status BlockLoad::Fill(HostQueue& queue) {
  // Where all blocks are busy it does with fewer.
  for (int tries = 0; tries < 8 && queue.outstanding() < options_.depth; ++tries) {
    Command command;
    const uint32_t draw = Draw(20);
    command.kind = draw < 8                         ? Kind::kRead
                   : draw < 17                      ? Kind::kWrite
                   : draw == 17 || !options_.zeroes ? Kind::kFlush
                   : draw == 18                     ? Kind::kZeroes
                                                    : Kind::kDeallocate;
    if (command.kind != Kind::kFlush) {
      command.range.count = 1 + Draw(options_.most_blocks);
      command.range.first = Draw(model_.blocks() - command.range.count + 1);
      if (!model_.IsFree(command.range)) continue;
    }
    if (command.kind == Kind::kWrite) command.write = next_write_++;
    BATON_RETURN_IF_ERROR(Submit(queue, command));
  }
  return absl::OkStatus();
}

absl::Status BlockLoad::Submit(HostQueue& queue, const Command& command) {
  const uint64_t block = model_.BlockOf(command.range);
  const uint32_t bytes = model_.BytesOf(command.range);
  const bool invalidate = options_.invalidate_keys && Draw(2) == 0;
  absl::StatusOr<uint16_t> cid;
  switch (command.kind) {
    case Kind::kRead:
      cid = queue.Submit(BlocksOf(IoOpcode::kRead, options_.nsid, block, command.range.count),
                         ToHost(bytes, invalidate));
      break;
    case Kind::kWrite: {
      const bool in_capsule = bytes <= kInCapsuleBytes && Draw(2) == 0;
      const uint16_t control = Draw(8) == 0 ? kBlockForceUnitAccess : 0;
      std::vector<uint8_t> data = model_.Data(command.range, command.write);
      cid = queue.Submit(
          BlocksOf(IoOpcode::kWrite, options_.nsid, block, command.range.count, control),
          in_capsule ? InCapsule(std::move(data)) : ToController(std::move(data), invalidate));
      break;
    }
    case Kind::kZeroes:
      cid = queue.Submit(BlocksOf(IoOpcode::kWriteZeroes, options_.nsid, block, command.range.count,
                                  Draw(2) == 0 ? kBlockDeallocate : 0));
      break;
    case Kind::kDeallocate:
      cid = queue.Submit(DeallocateOf(options_.nsid),
                         ToController(DatasetRangeOf(block, command.range.count), invalidate));
      break;
    case Kind::kFlush:
      cid = queue.Submit(CommandOf(IoOpcode::kFlush, options_.nsid));
      break;
  }
  BATON_RETURN_IF_ERROR(cid.status());
  model_.SetBusy(command.range, true);
  outstanding_[{queue.id(), *cid}] = command;
  return absl::OkStatus();
}

// Waits for one, and takes all that have come.
absl::Status BlockLoad::TakeAnswers() {
  size_t taken = 0;
  BATON_RETURN_IF_ERROR(host_->fabric().WaitFor(
      absl::StrCat("an answer to one of ", outstanding_.size(), " commands"), [&] {
        for (size_t i = 0; i < host_->io_queues() && status_.ok(); ++i) {
          while (std::optional<Response> response = host_->io(i).Take()) {
            const auto place = outstanding_.find({host_->io(i).id(), response->cid});
            status_.Update(Check(place->second, *response));
            model_.SetBusy(place->second.range, false);
            outstanding_.erase(place);
            ++taken;
            ++answered_;
          }
        }
        return taken > 0 || abandoned_ || outstanding_.empty() || !status_.ok() ||
               !host_->connected();
      }));
  BATON_RETURN_IF_ERROR(status_);
  if (abandoned_) return absl::CancelledError("nobody waits for the host");
  if (!host_->connected()) return absl::UnavailableError("a connection of the host's has ended");
  return absl::OkStatus();
}

absl::Status BlockLoad::Check(const Command& command, const Response& response) {
  BATON_RETURN_IF_ERROR(ExpectSuccess(
      response,
      absl::StrCat("command ", response.cid, " of kind ", static_cast<int>(command.kind), " for ",
                   command.range.count, " blocks from ", model_.BlockOf(command.range), " on")));
  switch (command.kind) {
    case Kind::kRead: {
      ++reads_;
      bytes_read_ += model_.BytesOf(command.range);
      const std::string difference = model_.Compare(command.range, response.data);
      return difference.empty() ? absl::OkStatus() : absl::DataLossError(difference);
    }
    case Kind::kWrite:
      ++writes_;
      bytes_written_ += model_.BytesOf(command.range);
      model_.Write(command.range, command.write);
      return absl::OkStatus();
    case Kind::kZeroes:
    case Kind::kDeallocate:
      model_.Write(command.range, 0);
      return absl::OkStatus();
    case Kind::kFlush:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status BlockLoad::Verify() {
  for (uint32_t first = 0; first < model_.blocks(); first += options_.most_blocks) {
    Command command;
    command.range = {first, std::min(options_.most_blocks, model_.blocks() - first)};
    BATON_ASSIGN_OR_RETURN(
        const Response response,
        host_->io().Execute(BlocksOf(IoOpcode::kRead, options_.nsid, model_.BlockOf(command.range),
                                     command.range.count),
                            ToHost(model_.BytesOf(command.range))));
    BATON_RETURN_IF_ERROR(Check(command, response));
  }
  return absl::OkStatus();
}

absl::Status BlockLoad::CheckCounters() {
  BATON_ASSIGN_OR_RETURN(const HealthLog log, host_->ReadHealthLog());
  const std::pair<const char*, std::pair<uint64_t, uint64_t>> counters[] = {
      {"host read commands", {log.host_read_commands[0], reads_}},
      {"host write commands", {log.host_write_commands[0], writes_}},
      {"data units read", {log.data_units_read[0], UnitsOf(bytes_read_)}},
      {"data units written", {log.data_units_written[0], UnitsOf(bytes_written_)}},
      {"error log entries", {log.error_log_entries[0], 0}},
  };
  for (const auto& [name, values] : counters) {
    if (values.first == values.second) continue;
    return absl::DataLossError(absl::StrCat("the health log counts ", values.first, " ", name,
                                            ", we have ", values.second));
  }
  return absl::OkStatus();
}

}  // namespace baton::nvmed
