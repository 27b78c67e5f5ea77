// The wire format between a host and a controller of NVMe over Fabrics with RDMA: commands,
// completions, private data of connections, properties, and their numbers. Names and numbers are
// those of the NVM Express Base Specification 2.0 (fabrics included), the NVM Command Set
// Specification 1.0 and the RDMA Transport Specification 1.0. The data that admin commands return
// is in nvme_data.h.
//
// Everything is little-endian. A peer wrote it, so it is copied first, then checked, then used.
// Fields that nothing here reads are reserved bytes.
#ifndef WORKER_EXAMPLES_NVMED_NVME_SPEC_H_
#define WORKER_EXAMPLES_NVMED_NVME_SPEC_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace baton::nvmed {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kAllNamespaces = 0xffffffff;  // NSID: each that is attached

// --- Status
// ---------------------------------------------------------------------------------------

// Status code type (SCT) and status code (SC): bits 11:1 of a completion's status field. A code of
// type 1 has a meaning for each command, hence the equal numbers.
enum class StatusCode : uint16_t {
  // Type 0: generic.
  kSuccess = 0x000,
  kInvalidOpcode = 0x001,
  kInvalidField = 0x002,
  kCommandIdConflict = 0x003,
  kDataTransferError = 0x004,
  kAbortedPowerLoss = 0x005,
  kInternalError = 0x006,
  kAbortRequested = 0x007,
  kAbortedSqDeletion = 0x008,
  kAbortedFailedFused = 0x009,
  kAbortedMissingFused = 0x00a,
  kInvalidNamespaceOrFormat = 0x00b,
  kCommandSequenceError = 0x00c,
  kInvalidSglSegmentDescriptor = 0x00d,
  kInvalidNumberOfSglDescriptors = 0x00e,
  kDataSglLengthInvalid = 0x00f,
  kMetadataSglLengthInvalid = 0x010,
  kSglDescriptorTypeInvalid = 0x011,
  kPrpOffsetInvalid = 0x013,
  kAtomicWriteUnitExceeded = 0x014,
  kOperationDenied = 0x015,
  kSglOffsetInvalid = 0x016,
  kHostIdentifierInconsistentFormat = 0x018,
  kKeepAliveTimerExpired = 0x019,
  kKeepAliveTimeoutInvalid = 0x01a,
  kNamespaceWriteProtected = 0x020,
  kCommandInterrupted = 0x021,
  kTransientTransportError = 0x022,
  kLbaOutOfRange = 0x080,
  kCapacityExceeded = 0x081,
  kNamespaceNotReady = 0x082,
  // Type 1: specific to the command.
  kCompletionQueueInvalid = 0x100,
  kInvalidQueueIdentifier = 0x101,
  kInvalidQueueSize = 0x102,
  kAbortCommandLimitExceeded = 0x103,
  kAsyncEventRequestLimitExceeded = 0x105,
  kInvalidFirmwareSlot = 0x106,
  kInvalidLogPage = 0x109,
  kFeatureIdentifierNotSaveable = 0x10d,
  kFeatureNotChangeable = 0x10e,
  kFeatureNotNamespaceSpecific = 0x10f,
  kConflictingAttributes = 0x180,         // NVM command set
  kInvalidProtectionInformation = 0x181,  // NVM command set
  kWriteToReadOnlyRange = 0x182,          // NVM command set
  kCommandSizeLimitExceeded = 0x183,      // NVM command set
  kConnectIncompatibleFormat = 0x180,
  kConnectControllerBusy = 0x181,
  kConnectInvalidParameters = 0x182,  // with ConnectInvalidResult
  kConnectRestartDiscovery = 0x183,
  kConnectInvalidHost = 0x184,
  kDisconnectInvalidQueueType = 0x185,
  kDiscoverRestart = 0x190,
  kAuthenticationRequired = 0x191,
  // Type 2: media and data integrity.
  kWriteFault = 0x280,
  kUnrecoveredReadError = 0x281,
  kCompareFailure = 0x285,
  kAccessDenied = 0x286,
  kDeallocatedOrUnwrittenBlock = 0x287,
  // Type 3: path.
  kInternalPathError = 0x300,
  kControllerPathError = 0x360,
};

inline constexpr uint16_t kStatusDoNotRetry = 0x8000;  // DNR, in a completion's status field
inline constexpr uint16_t kStatusMore = 0x4000;        // M: there is more in the error log

// A completion's status field. Its phase tag, bit 0, is reserved in fabrics. `do_not_retry`: the
// same command would fail again.
constexpr uint16_t StatusField(StatusCode code, bool do_not_retry) {
  return static_cast<uint16_t>(static_cast<uint16_t>(code) << 1 |
                               (do_not_retry ? kStatusDoNotRetry : 0));
}
constexpr StatusCode CodeOf(uint16_t status_field) {
  return static_cast<StatusCode>(status_field >> 1 & 0x7ff);
}

// --- Data pointers
// --------------------------------------------------------------------------------

enum class SglType : uint8_t {
  kDataBlock = 0x0,
  kBitBucket = 0x1,
  kSegment = 0x2,
  kLastSegment = 0x3,
  kKeyedDataBlock = 0x4,
  kTransportDataBlock = 0x5,
  kVendorSpecific = 0xf,
};

enum class SglSubtype : uint8_t {
  kAddress = 0x0,
  kOffset = 0x1,             // within the capsule
  kTransportSpecific = 0xa,  // first of those that the transport defines
  kInvalidateKey = 0xf,      // RDMA, keyed: the response is to invalidate the key
};

// An SGL descriptor. `length` has 24 bits in a keyed descriptor, and the key follows them.
struct SglDescriptor {
  uint64_t address;  // or the offset in the capsule
  uint32_t length;
  uint8_t reserved[3];
  uint8_t identifier;  // type << 4 | subtype
};
static_assert(offsetof(SglDescriptor, length) == 8);
static_assert(offsetof(SglDescriptor, identifier) == 15);
static_assert(sizeof(SglDescriptor) == 16);

constexpr SglType TypeOf(const SglDescriptor& sgl) {
  return static_cast<SglType>(sgl.identifier >> 4);
}
constexpr SglSubtype SubtypeOf(const SglDescriptor& sgl) {
  return static_cast<SglSubtype>(sgl.identifier & 0xf);
}
constexpr uint8_t SglIdentifier(SglType type, SglSubtype subtype) {
  return static_cast<uint8_t>(static_cast<uint8_t>(type) << 4 | static_cast<uint8_t>(subtype));
}
constexpr uint32_t KeyedLengthOf(const SglDescriptor& sgl) { return sgl.length & 0xffffff; }
constexpr uint32_t KeyOf(const SglDescriptor& sgl) {
  return sgl.length >> 24 | uint32_t{sgl.reserved[0]} << 8 | uint32_t{sgl.reserved[1]} << 16 |
         uint32_t{sgl.reserved[2]} << 24;
}
// REQUIRES: length < 1 << 24.
constexpr SglDescriptor KeyedSgl(uint64_t address, uint32_t length, uint32_t key,
                                 bool invalidate_key) {
  return {address,
          length | key << 24,
          {static_cast<uint8_t>(key >> 8), static_cast<uint8_t>(key >> 16),
           static_cast<uint8_t>(key >> 24)},
          SglIdentifier(SglType::kKeyedDataBlock,
                        invalidate_key ? SglSubtype::kInvalidateKey : SglSubtype::kAddress)};
}
constexpr SglDescriptor InCapsuleSgl(uint64_t offset, uint32_t length) {
  return {offset, length, {}, SglIdentifier(SglType::kDataBlock, SglSubtype::kOffset)};
}

// --- Commands
// -------------------------------------------------------------------------------------

enum class AdminOpcode : uint8_t {
  kDeleteIoSq = 0x00,  // the four queue commands do not exist in fabrics
  kCreateIoSq = 0x01,
  kGetLogPage = 0x02,
  kDeleteIoCq = 0x04,
  kCreateIoCq = 0x05,
  kIdentify = 0x06,
  kAbort = 0x08,
  kSetFeatures = 0x09,
  kGetFeatures = 0x0a,
  kAsyncEventRequest = 0x0c,
  kKeepAlive = 0x18,
  kFabrics = 0x7f,
};

enum class IoOpcode : uint8_t {
  kFlush = 0x00,
  kWrite = 0x01,
  kRead = 0x02,
  kWriteUncorrectable = 0x04,
  kCompare = 0x05,
  kWriteZeroes = 0x08,
  kDatasetManagement = 0x09,
  kFabrics = 0x7f,
};

// The type (FCTYPE) of a command with the opcode kFabrics, on any queue.
enum class FabricsType : uint8_t {
  kPropertySet = 0x00,
  kConnect = 0x01,
  kPropertyGet = 0x04,
  kAuthenticationSend = 0x05,
  kAuthenticationReceive = 0x06,
  kDisconnect = 0x08,
};

// Submission queue entry.
struct SubmissionEntry {
  uint8_t opcode;
  uint8_t flags;  // PSDT, bits 7:6; FUSE, bits 1:0. Reserved in fabrics commands.
  uint16_t cid;   // the host's, returned in the completion
  uint32_t nsid;  // in fabrics commands the first byte is FCTYPE, the rest reserved
  uint32_t cdw2;
  uint32_t cdw3;
  uint64_t mptr;
  SglDescriptor sgl1;  // DPTR
  uint32_t cdw10;
  uint32_t cdw11;
  uint32_t cdw12;
  uint32_t cdw13;
  uint32_t cdw14;
  uint32_t cdw15;
};
static_assert(offsetof(SubmissionEntry, cid) == 2);
static_assert(offsetof(SubmissionEntry, nsid) == 4);
static_assert(offsetof(SubmissionEntry, mptr) == 16);
static_assert(offsetof(SubmissionEntry, sgl1) == 24);
static_assert(offsetof(SubmissionEntry, cdw10) == 40);
static_assert(offsetof(SubmissionEntry, cdw15) == 60);
static_assert(sizeof(SubmissionEntry) == 64);

constexpr FabricsType FabricsTypeOf(const SubmissionEntry& command) {
  return static_cast<FabricsType>(command.nsid & 0xff);
}

// Where the data of a command is (`flags`).
enum class Psdt : uint8_t {
  kPrp = 0,  // not with fabrics
  kSglContiguousMetadata = 1,
  kSglMetadataSegment = 2,
};
constexpr Psdt PsdtOf(const SubmissionEntry& command) {
  return static_cast<Psdt>(command.flags >> 6);
}
inline constexpr uint8_t kPsdtShift = 6;
inline constexpr uint8_t kFuseMask = 0x03;  // 0: not fused

// Views of a command's last 24 bytes, by opcode. The first 40 are SubmissionEntry's.

struct ConnectCommand {
  uint8_t common[40];
  uint16_t recfmt;  // 0
  uint16_t qid;     // 0: the admin queue
  uint16_t sqsize;  // entries, zero-based
  uint8_t cattr;    // kConnect...
  uint8_t reserved47;
  uint32_t kato;  // keep alive timeout in ms; 0: none
  uint8_t reserved52[12];
};
static_assert(offsetof(ConnectCommand, recfmt) == 40);
static_assert(offsetof(ConnectCommand, cattr) == 46);
static_assert(offsetof(ConnectCommand, kato) == 48);
static_assert(sizeof(ConnectCommand) == 64);
inline constexpr uint8_t kConnectPriorityMask = 0x03;
inline constexpr uint8_t kConnectDisableSqFlowControl = 0x04;
inline constexpr uint8_t kConnectIndividualQueueDeletion = 0x08;

// Property Get as well, without `value`.
struct PropertyCommand {
  uint8_t common[40];
  uint8_t attrib;  // bits 2:0: kProperty...Bytes
  uint8_t reserved41[3];
  uint32_t ofst;   // kProperty...
  uint64_t value;  // of Property Set
  uint8_t reserved56[8];
};
static_assert(offsetof(PropertyCommand, attrib) == 40);
static_assert(offsetof(PropertyCommand, ofst) == 44);
static_assert(offsetof(PropertyCommand, value) == 48);
static_assert(sizeof(PropertyCommand) == 64);
inline constexpr uint8_t kPropertySizeMask = 0x07;
inline constexpr uint8_t kProperty4Bytes = 0;
inline constexpr uint8_t kProperty8Bytes = 1;

struct DisconnectCommand {
  uint8_t common[40];
  uint16_t recfmt;  // 0
  uint8_t reserved42[22];
};
static_assert(offsetof(DisconnectCommand, recfmt) == 40);
static_assert(sizeof(DisconnectCommand) == 64);

struct AuthenticationCommand {
  uint8_t common[41];
  uint8_t spsp0;
  uint8_t spsp1;
  uint8_t secp;
  uint32_t length;  // bytes: TL of Authentication Send, AL of Authentication Receive
  uint8_t reserved48[16];
};
static_assert(offsetof(AuthenticationCommand, secp) == 43);
static_assert(offsetof(AuthenticationCommand, length) == 44);
static_assert(sizeof(AuthenticationCommand) == 64);

struct IdentifyCommand {
  uint8_t common[40];
  uint8_t cns;  // IdentifyCns
  uint8_t reserved41;
  uint16_t cntid;
  uint16_t cns_specific_id;
  uint8_t reserved46;
  uint8_t csi;  // command set: kNvmCommandSet
  uint8_t reserved48[8];
  uint32_t uuid_index;  // bits 6:0
  uint8_t reserved60[4];
};
static_assert(offsetof(IdentifyCommand, cns) == 40);
static_assert(offsetof(IdentifyCommand, cntid) == 42);
static_assert(offsetof(IdentifyCommand, csi) == 47);
static_assert(offsetof(IdentifyCommand, uuid_index) == 56);
static_assert(sizeof(IdentifyCommand) == 64);

enum class IdentifyCns : uint8_t {
  kNamespace = 0x00,
  kController = 0x01,
  kActiveNamespaces = 0x02,
  kNamespaceDescriptors = 0x03,
  kNamespaceOfCommandSet = 0x05,
  kControllerOfCommandSet = 0x06,
  kActiveNamespacesOfCommandSet = 0x07,
  kNamespaceIndependent = 0x08,
  kCommandSets = 0x1c,
};
inline constexpr uint8_t kNvmCommandSet = 0x00;  // CSI

struct GetLogPageCommand {
  uint8_t common[40];
  uint8_t lid;      // LogPageId
  uint8_t lsp_rae;  // bits 6:0: LSP; bit 7: RAE
  uint16_t numdl;
  uint16_t numdu;
  uint16_t lsi;
  uint32_t lpol;
  uint32_t lpou;
  uint8_t uuid_index;
  uint8_t reserved57;
  uint8_t ot;  // bit 7: the offset is an index
  uint8_t csi;
  uint8_t reserved60[4];
};
static_assert(offsetof(GetLogPageCommand, lid) == 40);
static_assert(offsetof(GetLogPageCommand, numdl) == 42);
static_assert(offsetof(GetLogPageCommand, lsi) == 46);
static_assert(offsetof(GetLogPageCommand, lpol) == 48);
static_assert(offsetof(GetLogPageCommand, csi) == 59);
static_assert(sizeof(GetLogPageCommand) == 64);
inline constexpr uint8_t kLogRetainAsyncEvent = 0x80;  // in lsp_rae
inline constexpr uint8_t kLogIndexOffset = 0x80;       // in ot

enum class LogPageId : uint8_t {
  kSupportedPages = 0x00,
  kErrorInformation = 0x01,
  kHealth = 0x02,
  kFirmwareSlot = 0x03,
  kChangedNamespaces = 0x04,
  kCommandsSupported = 0x05,
  kDiscovery = 0x70,
};

// Get Features and Set Features.
struct FeaturesCommand {
  uint8_t common[40];
  uint8_t fid;     // FeatureId
  uint8_t select;  // of Get Features, bits 2:0: FeatureSelect
  uint8_t reserved42;
  uint8_t save;    // of Set Features, bit 7
  uint32_t cdw11;  // the value that is set
  uint32_t cdw12;
  uint32_t cdw13;
  uint32_t cdw14;
  uint32_t cdw15;
};
static_assert(offsetof(FeaturesCommand, fid) == 40);
static_assert(offsetof(FeaturesCommand, save) == 43);
static_assert(offsetof(FeaturesCommand, cdw11) == 44);
static_assert(sizeof(FeaturesCommand) == 64);
inline constexpr uint8_t kFeatureSave = 0x80;  // in save

enum class FeatureSelect : uint8_t { kCurrent = 0, kDefault = 1, kSaved = 2, kSupported = 3 };
constexpr FeatureSelect SelectOf(const FeaturesCommand& command) {
  return static_cast<FeatureSelect>(command.select & 0x7);
}

enum class FeatureId : uint8_t {
  kArbitration = 0x01,
  kPowerManagement = 0x02,
  kLbaRangeType = 0x03,
  kTemperatureThreshold = 0x04,
  kErrorRecovery = 0x05,
  kVolatileWriteCache = 0x06,  // bit 0: WCE
  kNumberOfQueues = 0x07,      // NumberOfQueues
  kInterruptCoalescing = 0x08,
  kInterruptVector = 0x09,
  kWriteAtomicity = 0x0a,
  kAsyncEventConfiguration = 0x0b,  // kAsyncEvent...
  kPowerStateTransition = 0x0c,
  kTimestamp = 0x0e,
  kKeepAliveTimer = 0x0f,  // ms
  kHostBehavior = 0x16,
  kHostIdentifier = 0x81,
  kReservationNotificationMask = 0x82,
  kReservationPersistence = 0x83,
  kWriteProtection = 0x84,
};

// Value and result of kNumberOfQueues: I/O submission and completion queues, zero-based each.
constexpr uint32_t NumberOfQueues(uint16_t submission, uint16_t completion) {
  return uint32_t{submission} | uint32_t{completion} << 16;
}

struct AbortCommand {
  uint8_t common[40];
  uint16_t sqid;
  uint16_t cid;
  uint8_t reserved44[20];
};
static_assert(offsetof(AbortCommand, sqid) == 40);
static_assert(offsetof(AbortCommand, cid) == 42);
static_assert(sizeof(AbortCommand) == 64);
inline constexpr uint32_t kNotAborted = 1;  // bit 0 of Abort's result; 0: aborted

// Read, Write, Compare, Write Zeroes, Write Uncorrectable.
struct BlockCommand {
  uint8_t common[40];
  uint64_t slba;
  uint16_t nlb;      // zero-based
  uint16_t control;  // kBlock...
  uint8_t dsm;
  uint8_t reserved53;
  uint16_t dspec;
  uint32_t reference_tag;
  uint16_t application_tag;
  uint16_t application_tag_mask;
};
static_assert(offsetof(BlockCommand, slba) == 40);
static_assert(offsetof(BlockCommand, nlb) == 48);
static_assert(offsetof(BlockCommand, control) == 50);
static_assert(offsetof(BlockCommand, reference_tag) == 56);
static_assert(sizeof(BlockCommand) == 64);
inline constexpr uint16_t kBlockLimitedRetry = 0x8000;
inline constexpr uint16_t kBlockForceUnitAccess = 0x4000;
inline constexpr uint16_t kBlockProtectionMask = 0x3c00;  // PRINFO; 0 without metadata
inline constexpr uint16_t kBlockDeallocate = 0x0200;      // of Write Zeroes

struct DatasetManagementCommand {
  uint8_t common[40];
  uint8_t nr;  // ranges, zero-based
  uint8_t reserved41[3];
  uint32_t attributes;  // kDataset...
  uint8_t reserved48[16];
};
static_assert(offsetof(DatasetManagementCommand, nr) == 40);
static_assert(offsetof(DatasetManagementCommand, attributes) == 44);
static_assert(sizeof(DatasetManagementCommand) == 64);
inline constexpr uint32_t kDatasetIntegralRead = 1;
inline constexpr uint32_t kDatasetIntegralWrite = 2;
inline constexpr uint32_t kDatasetDeallocate = 4;

struct DatasetRange {
  uint32_t attributes;  // hints
  uint32_t nlb;         // blocks, not zero-based
  uint64_t slba;
};
static_assert(offsetof(DatasetRange, nlb) == 4);
static_assert(offsetof(DatasetRange, slba) == 8);
static_assert(sizeof(DatasetRange) == 16);

template <typename View>
View ViewOf(const SubmissionEntry& command) {
  static_assert(std::is_trivially_copyable_v<View> && sizeof(View) == sizeof(command));
  View view;
  std::memcpy(&view, &command, sizeof(view));
  return view;
}

// --- Completions
// ----------------------------------------------------------------------------------

struct CompletionEntry {
  uint64_t result;  // DW0, and of Property Get 8 bytes
  uint16_t sqhd;    // reserved when SQ flow control is disabled
  uint16_t sqid;    // reserved in fabrics
  uint16_t cid;
  uint16_t status;  // StatusField
};
static_assert(offsetof(CompletionEntry, sqhd) == 8);
static_assert(offsetof(CompletionEntry, cid) == 12);
static_assert(offsetof(CompletionEntry, status) == 14);
static_assert(sizeof(CompletionEntry) == 16);

// Result of a Connect that has succeeded.
constexpr uint32_t ConnectResult(uint16_t cntlid) { return cntlid; }
// Result with kConnectInvalidParameters: which field, by its offset in the command or the data.
constexpr uint32_t ConnectInvalidResult(bool in_data, uint16_t offset) {
  return uint32_t{offset} | (in_data ? uint32_t{1} << 16 : 0);
}

// Result of an Asynchronous Event Request.
enum class AsyncEventType : uint8_t { kError = 0, kHealth = 1, kNotice = 2, kIoCommandSet = 6 };
inline constexpr uint8_t kNoticeNamespaceChanged = 0x00;
inline constexpr uint8_t kNoticeDiscoveryChanged = 0xf0;
constexpr uint32_t AsyncEventResult(AsyncEventType type, uint8_t information, LogPageId page) {
  return static_cast<uint32_t>(type) | uint32_t{information} << 8 |
         uint32_t{static_cast<uint8_t>(page)} << 16;
}
// Bits of the feature kAsyncEventConfiguration and of OAES (Identify Controller).
inline constexpr uint32_t kAsyncEventNamespaceChanged = uint32_t{1} << 8;
inline constexpr uint32_t kAsyncEventDiscoveryChanged = uint32_t{1} << 31;

// --- Connect
// --------------------------------------------------------------------------------------

inline constexpr size_t kNqnFieldBytes = 256;
inline constexpr size_t kMaxNqnBytes = 223;  // without its NUL
inline constexpr char kDiscoveryNqn[] = "nqn.2014-08.org.nvmexpress.discovery";

struct ConnectData {
  uint8_t hostid[16];
  uint16_t cntlid;  // kDynamicController of an admin queue
  uint8_t reserved18[238];
  char subnqn[kNqnFieldBytes];
  char hostnqn[kNqnFieldBytes];
  uint8_t reserved768[256];
};
static_assert(offsetof(ConnectData, cntlid) == 16);
static_assert(offsetof(ConnectData, subnqn) == 256);
static_assert(offsetof(ConnectData, hostnqn) == 512);
static_assert(sizeof(ConnectData) == 1024);
inline constexpr uint16_t kDynamicController = 0xffff;  // CNTLID: any
inline constexpr uint16_t kMaxControllerId = 0xffef;    // those above are reserved

// Private data of an RDMA connection: the host's request.
struct RdmaRequest {
  uint16_t recfmt;   // 0
  uint16_t qid;      // 0: the admin queue
  uint16_t hrqsize;  // entries of the host's receive queue
  uint16_t hsqsize;  // entries of the host's send queue, zero-based
  uint16_t cntlid;   // since transport specification 1.0; 0 from those before it
  uint8_t reserved10[22];
};
static_assert(offsetof(RdmaRequest, hrqsize) == 4);
static_assert(offsetof(RdmaRequest, cntlid) == 8);
static_assert(sizeof(RdmaRequest) == 32);

struct RdmaAccept {
  uint16_t recfmt;   // 0
  uint16_t crqsize;  // entries of the controller's receive queue
  uint8_t reserved4[28];
};
static_assert(offsetof(RdmaAccept, crqsize) == 2);
static_assert(sizeof(RdmaAccept) == 32);

enum class RdmaRejectStatus : uint16_t {
  kInvalidPrivateDataLength = 0x01,
  kInvalidRecfmt = 0x02,
  kInvalidQid = 0x03,
  kInvalidHsqsize = 0x04,
  kInvalidHrqsize = 0x05,
  kNoResources = 0x06,
  kInvalidIrd = 0x07,
  kInvalidOrd = 0x08,
};

struct RdmaReject {
  uint16_t recfmt;  // 0
  RdmaRejectStatus sts;
};
static_assert(offsetof(RdmaReject, sts) == 2);
static_assert(sizeof(RdmaReject) == 4);

inline constexpr uint16_t kMinAdminQueueEntries = 32;

// --- Properties
// -----------------------------------------------------------------------------------

inline constexpr uint32_t kPropertyCap = 0x00;  // 8 bytes
inline constexpr uint32_t kPropertyVs = 0x08;   // 4 bytes, as are the others
inline constexpr uint32_t kPropertyCc = 0x14;
inline constexpr uint32_t kPropertyCsts = 0x1c;
inline constexpr uint32_t kPropertyNssr = 0x20;  // only with CAP.NSSRS

// VS
constexpr uint32_t Version(uint16_t major, uint8_t minor, uint8_t tertiary) {
  return uint32_t{major} << 16 | uint32_t{minor} << 8 | tertiary;
}

// CAP of a controller for the NVM command set, with pages of 4 KiB and, as in fabrics, contiguous
// queues and no doorbells. `max_queue_entries` from 2 on; `ready_timeout` in units of 500 ms: how
// long CSTS may take to follow CC.
constexpr uint64_t Capabilities(uint32_t max_queue_entries, uint8_t ready_timeout) {
  return uint64_t{(max_queue_entries - 1) & 0xffff} |  // MQES
         uint64_t{1} << 16 |                           // CQR
         uint64_t{ready_timeout} << 24 |               // TO
         uint64_t{1} << 37;                            // CSS: NVM command set
}
inline constexpr uint8_t kPageShift = 12;  // of CAP.MPSMIN, the unit of MDTS

// CC. 0 after a reset.
constexpr bool CcEnable(uint32_t cc) { return (cc & 1) != 0; }
constexpr uint8_t CcCommandSet(uint32_t cc) { return cc >> 4 & 0x7; }    // CSS; 0: NVM
constexpr uint8_t CcPageSize(uint32_t cc) { return cc >> 7 & 0xf; }      // MPS; 0: 4 KiB
constexpr uint8_t CcArbitration(uint32_t cc) { return cc >> 11 & 0x7; }  // AMS; 0: round robin
constexpr uint8_t CcShutdown(uint32_t cc) { return cc >> 14 & 0x3; }     // SHN
constexpr uint8_t CcIoSqEntrySize(uint32_t cc) { return cc >> 16 & 0xf; }
constexpr uint8_t CcIoCqEntrySize(uint32_t cc) { return cc >> 20 & 0xf; }
inline constexpr uint8_t kShutdownNone = 0;
inline constexpr uint8_t kShutdownNormal = 1;
inline constexpr uint8_t kShutdownAbrupt = 2;
inline constexpr uint8_t kIoSqEntryShift = 6;  // 64 bytes
inline constexpr uint8_t kIoCqEntryShift = 4;  // 16 bytes

// CSTS
inline constexpr uint32_t kCstsReady = 1;
inline constexpr uint32_t kCstsFatal = 2;
inline constexpr uint32_t kCstsShutdownMask = 0x0c;
inline constexpr uint32_t kCstsShutdownOccurring = 0x04;
inline constexpr uint32_t kCstsShutdownComplete = 0x08;

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_NVME_SPEC_H_
