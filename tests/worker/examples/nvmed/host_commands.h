// Commands, as hosts make them.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_HOST_COMMANDS_H_
#define TESTS_WORKER_EXAMPLES_NVMED_HOST_COMMANDS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/worker/examples/nvmed/host_queue.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

template <typename View>
SubmissionEntry EntryOf(const View& view) {
  static_assert(sizeof(View) == sizeof(SubmissionEntry));
  SubmissionEntry entry;
  std::memcpy(&entry, &view, sizeof(entry));
  return entry;
}

template <typename Opcode>
SubmissionEntry CommandOf(Opcode opcode, uint32_t nsid = 0) {
  SubmissionEntry entry = {};
  entry.opcode = static_cast<uint8_t>(opcode);
  entry.nsid = nsid;
  return entry;
}

// `blocks` from 1 on.
inline SubmissionEntry BlocksOf(IoOpcode opcode, uint32_t nsid, uint64_t slba, uint32_t blocks,
                                uint16_t control = 0) {
  auto block = ViewOf<BlockCommand>(CommandOf(opcode, nsid));
  block.slba = slba;
  block.nlb = static_cast<uint16_t>(blocks - 1);
  block.control = control;
  return EntryOf(block);
}

inline SubmissionEntry DeallocateOf(uint32_t nsid) {
  auto dataset = ViewOf<DatasetManagementCommand>(CommandOf(IoOpcode::kDatasetManagement, nsid));
  dataset.attributes = kDatasetDeallocate;
  return EntryOf(dataset);
}
// Its data, for one range.
inline std::vector<uint8_t> DatasetRangeOf(uint64_t slba, uint32_t blocks) {
  const DatasetRange range{0, blocks, slba};
  const auto* begin = reinterpret_cast<const uint8_t*>(&range);
  return {begin, begin + sizeof(range)};
}

inline SubmissionEntry FabricsOf(FabricsType type) {
  return CommandOf(AdminOpcode::kFabrics, static_cast<uint32_t>(type));
}

inline SubmissionEntry GetPropertyOf(uint32_t offset, uint8_t size = kProperty4Bytes) {
  auto property = ViewOf<PropertyCommand>(FabricsOf(FabricsType::kPropertyGet));
  property.ofst = offset;
  property.attrib = size;
  return EntryOf(property);
}

inline SubmissionEntry SetPropertyOf(uint32_t offset, uint32_t value) {
  auto property = ViewOf<PropertyCommand>(FabricsOf(FabricsType::kPropertySet));
  property.ofst = offset;
  property.value = value;
  return EntryOf(property);
}

inline SubmissionEntry IdentifyOf(IdentifyCns cns, uint32_t nsid = 0) {
  auto identify = ViewOf<IdentifyCommand>(CommandOf(AdminOpcode::kIdentify, nsid));
  identify.cns = static_cast<uint8_t>(cns);
  return EntryOf(identify);
}

// `bytes`: a multiple of 4.
inline SubmissionEntry LogPageOf(LogPageId page, uint32_t bytes, uint32_t nsid = kAllNamespaces) {
  auto get = ViewOf<GetLogPageCommand>(CommandOf(AdminOpcode::kGetLogPage, nsid));
  get.lid = static_cast<uint8_t>(page);
  get.numdl = static_cast<uint16_t>(bytes / 4 - 1);
  get.numdu = static_cast<uint16_t>((bytes / 4 - 1) >> 16);
  return EntryOf(get);
}

inline SubmissionEntry SetFeaturesOf(FeatureId feature, uint32_t value) {
  auto features = ViewOf<FeaturesCommand>(CommandOf(AdminOpcode::kSetFeatures));
  features.fid = static_cast<uint8_t>(feature);
  features.cdw11 = value;
  return EntryOf(features);
}

inline SubmissionEntry AbortOf(uint16_t queue, uint16_t cid) {
  auto abort = ViewOf<AbortCommand>(CommandOf(AdminOpcode::kAbort));
  abort.sqid = queue;
  abort.cid = cid;
  return EntryOf(abort);
}

inline Transfer ToHost(uint32_t bytes, bool invalidate_key = false) {
  Transfer transfer;
  transfer.kind = Transfer::Kind::kToHost;
  transfer.length = bytes;
  transfer.invalidate_key = invalidate_key;
  return transfer;
}
inline Transfer ToController(std::vector<uint8_t> data, bool invalidate_key = false) {
  Transfer transfer;
  transfer.kind = Transfer::Kind::kToController;
  transfer.data = std::move(data);
  transfer.invalidate_key = invalidate_key;
  return transfer;
}
inline Transfer InCapsule(std::vector<uint8_t> data) {
  Transfer transfer;
  transfer.kind = Transfer::Kind::kInCapsule;
  transfer.data = std::move(data);
  return transfer;
}

// The beginning of what a command has returned.
template <typename Data>
Data DataAs(const Response& response) {
  Data data = {};
  std::memcpy(&data, response.data.data(), std::min(sizeof(data), response.data.size()));
  return data;
}

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_HOST_COMMANDS_H_
