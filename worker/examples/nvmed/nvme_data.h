// The data that Identify and Get Log Page return, names and numbers as in nvme_spec.h. Fields that
// are always 0 here are reserved bytes.
#ifndef WORKER_EXAMPLES_NVMED_NVME_DATA_H_
#define WORKER_EXAMPLES_NVMED_NVME_DATA_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

// --- Identify
// -------------------------------------------------------------------------------------

inline constexpr size_t kIdentifyBytes = 4096;
inline constexpr size_t kSerialBytes = 20;
inline constexpr size_t kModelBytes = 40;
inline constexpr size_t kFirmwareBytes = 8;

enum class ControllerType : uint8_t { kNotReported = 0, kIo = 1, kDiscovery = 2, kAdmin = 3 };

struct PowerState {
  uint16_t mp;
  uint8_t reserved2[30];
};
static_assert(sizeof(PowerState) == 32);

struct IdentifyController {
  uint16_t vid;
  uint16_t ssvid;
  char sn[kSerialBytes];  // these three are padded with blanks
  char mn[kModelBytes];
  char fr[kFirmwareBytes];
  uint8_t rab;
  uint8_t ieee[3];
  uint8_t cmic;
  uint8_t mdts;  // 1 << mdts pages of CAP.MPSMIN; 0: no limit
  uint16_t cntlid;
  uint32_t ver;  // VS
  uint32_t rtd3r;
  uint32_t rtd3e;
  uint32_t oaes;    // kAsyncEvent...
  uint32_t ctratt;  // kController...
  uint8_t reserved100[11];
  ControllerType cntrltype;
  uint8_t fguid[16];
  uint8_t reserved128[128];
  uint16_t oacs;
  uint8_t acl;   // zero-based
  uint8_t aerl;  // zero-based
  uint8_t frmw;  // kFirmware...
  uint8_t lpa;   // kLogPage...
  uint8_t elpe;  // zero-based
  uint8_t npss;  // zero-based
  uint8_t reserved264[56];
  uint16_t kas;  // in units of 100 ms; 0: no keep alive
  uint8_t reserved322[190];
  uint8_t sqes;  // largest << 4 | required
  uint8_t cqes;
  uint16_t maxcmd;  // commands outstanding on one I/O queue
  uint32_t nn;      // the largest NSID, when mnan is 0
  uint16_t oncs;    // kOptional...
  uint16_t fuses;
  uint8_t fna;
  uint8_t vwc;  // kWriteCache...
  uint16_t awun;
  uint16_t awupf;
  uint8_t icsvscc;
  uint8_t nwpc;
  uint16_t acwu;
  uint8_t reserved534[2];
  uint32_t sgls;  // kSgls...
  uint32_t mnan;
  uint8_t reserved544[224];
  char subnqn[kNqnFieldBytes];
  uint8_t reserved1024[768];
  uint32_t ioccsz;  // in units of 16 bytes, as is the next
  uint32_t iorcsz;
  uint16_t icdoff;
  uint8_t fcatt;  // bit 0: controllers are static
  uint8_t msdbd;  // SGL data blocks of a command; 0: no limit
  uint16_t ofcs;  // bit 0: Disconnect
  uint8_t dctype;
  uint8_t reserved1807[241];
  PowerState psd[32];
  uint8_t vendor[1024];
};
static_assert(offsetof(IdentifyController, ieee) == 73);
static_assert(offsetof(IdentifyController, mdts) == 77);
static_assert(offsetof(IdentifyController, ver) == 80);
static_assert(offsetof(IdentifyController, oaes) == 92);
static_assert(offsetof(IdentifyController, cntrltype) == 111);
static_assert(offsetof(IdentifyController, oacs) == 256);
static_assert(offsetof(IdentifyController, lpa) == 261);
static_assert(offsetof(IdentifyController, kas) == 320);
static_assert(offsetof(IdentifyController, sqes) == 512);
static_assert(offsetof(IdentifyController, maxcmd) == 514);
static_assert(offsetof(IdentifyController, nn) == 516);
static_assert(offsetof(IdentifyController, vwc) == 525);
static_assert(offsetof(IdentifyController, sgls) == 536);
static_assert(offsetof(IdentifyController, subnqn) == 768);
static_assert(offsetof(IdentifyController, ioccsz) == 1792);
static_assert(offsetof(IdentifyController, ofcs) == 1804);
static_assert(offsetof(IdentifyController, psd) == 2048);
static_assert(offsetof(IdentifyController, vendor) == 3072);
static_assert(sizeof(IdentifyController) == kIdentifyBytes);

inline constexpr uint8_t kCmicManyPorts = 0x01;
inline constexpr uint8_t kCmicManyControllers = 0x02;
inline constexpr uint32_t kControllerLongHostId = 0x01;  // CTRATT: host identifiers of 128 bits
inline constexpr uint32_t kControllerTrafficKeepAlive = 0x40;  // CTRATT
inline constexpr uint8_t kFirmwareFirstSlotReadOnly = 0x01;    // FRMW
inline constexpr uint8_t kFirmwareSlotsShift = 1;
inline constexpr uint8_t kLogPageCommandsSupported = 0x02;  // LPA
inline constexpr uint8_t kLogPageExtendedData = 0x04;       // NUMDU, LPOL and LPOU count
inline constexpr uint16_t kOptionalCompare = 0x01;          // ONCS
inline constexpr uint16_t kOptionalDatasetManagement = 0x04;
inline constexpr uint16_t kOptionalWriteZeroes = 0x08;
inline constexpr uint16_t kOptionalSaveAndSelect = 0x10;
inline constexpr uint8_t kWriteCachePresent = 0x01;           // VWC
inline constexpr uint8_t kWriteCacheNoBroadcastFlush = 0x04;  // Flush of all namespaces: refused
inline constexpr uint8_t kWriteCacheBroadcastFlush = 0x06;    // the same: executed
inline constexpr uint32_t kSglsSupported = 0x01;              // with any alignment
inline constexpr uint32_t kSglsKeyed = uint32_t{1} << 2;
inline constexpr uint32_t kSglsOversized = uint32_t{1} << 18;  // may name more than is moved
inline constexpr uint32_t kSglsInCapsuleOffset = uint32_t{1} << 20;
inline constexpr uint16_t kFabricsDisconnect = 0x01;  // OFCS

struct LbaFormat {
  uint16_t ms;    // metadata
  uint8_t lbads;  // a block has 1 << lbads bytes
  uint8_t rp;
};
static_assert(sizeof(LbaFormat) == 4);

struct IdentifyNamespace {
  uint64_t nsze;  // blocks, as are the next two
  uint64_t ncap;
  uint64_t nuse;
  uint8_t nsfeat;
  uint8_t nlbaf;  // zero-based
  uint8_t flbas;  // the format in use
  uint8_t mc;
  uint8_t dpc;
  uint8_t dps;
  uint8_t nmic;  // bit 0: many controllers may attach it
  uint8_t rescap;
  uint8_t fpi;
  uint8_t dlfeat;  // kDeallocated...
  uint16_t nawun;
  uint16_t nawupf;
  uint16_t nacwu;
  uint8_t reserved40[8];
  uint64_t nvmcap[2];  // bytes
  uint16_t npwg;       // zero-based blocks, as are the next four
  uint16_t npwa;
  uint16_t npdg;
  uint16_t npda;
  uint16_t nows;
  uint8_t reserved74[18];
  uint32_t anagrpid;
  uint8_t reserved96[3];
  uint8_t nsattr;  // bit 0: write protected
  uint16_t nvmsetid;
  uint16_t endgid;
  uint8_t nguid[16];  // big-endian, as is the next
  uint8_t eui64[8];
  LbaFormat lbaf[64];
  uint8_t vendor[3712];
};
static_assert(offsetof(IdentifyNamespace, nsfeat) == 24);
static_assert(offsetof(IdentifyNamespace, flbas) == 26);
static_assert(offsetof(IdentifyNamespace, nmic) == 30);
static_assert(offsetof(IdentifyNamespace, dlfeat) == 33);
static_assert(offsetof(IdentifyNamespace, nvmcap) == 48);
static_assert(offsetof(IdentifyNamespace, npwg) == 64);
static_assert(offsetof(IdentifyNamespace, anagrpid) == 92);
static_assert(offsetof(IdentifyNamespace, nsattr) == 99);
static_assert(offsetof(IdentifyNamespace, nguid) == 104);
static_assert(offsetof(IdentifyNamespace, eui64) == 120);
static_assert(offsetof(IdentifyNamespace, lbaf) == 128);
static_assert(offsetof(IdentifyNamespace, vendor) == 384);
static_assert(sizeof(IdentifyNamespace) == kIdentifyBytes);

inline constexpr uint8_t kNsfeatOptimalPerformance = 0x10;  // NPWG and the four after it count
inline constexpr uint8_t kNamespaceShared = 0x01;           // NMIC
inline constexpr uint8_t kDeallocatedReadsZero = 0x01;      // DLFEAT
inline constexpr uint8_t kDeallocatedByWriteZeroes = 0x08;  // whose bit DEAC counts

// NSIDs in increasing order, 0 after the last. Also the changed namespace list.
struct NamespaceList {
  static constexpr size_t kEntries = 1024;
  uint32_t nsid[kEntries];
};
static_assert(sizeof(NamespaceList) == kIdentifyBytes);

// Descriptors follow each other, each as long as its nidl says. One with nidl 0 is the end.
enum class NamespaceIdType : uint8_t { kEui64 = 1, kNguid = 2, kUuid = 3, kCommandSet = 4 };
struct NamespaceDescriptorHeader {
  NamespaceIdType nidt;
  uint8_t nidl;
  uint8_t reserved2[2];
};
static_assert(sizeof(NamespaceDescriptorHeader) == 4);

// CNS 06h for the NVM command set. 0: no limit of its own.
struct IdentifyNvmController {
  uint8_t vsl;
  uint8_t wzsl;  // Write Zeroes: 1 << wzsl pages of CAP.MPSMIN
  uint8_t wusl;
  uint8_t dmrl;    // Dataset Management: ranges
  uint32_t dmrsl;  // blocks of a range
  uint64_t dmsl;   // blocks of all ranges
  uint8_t reserved16[4080];
};
static_assert(offsetof(IdentifyNvmController, dmrl) == 3);
static_assert(offsetof(IdentifyNvmController, dmsl) == 8);
static_assert(sizeof(IdentifyNvmController) == kIdentifyBytes);

// --- Log pages
// ------------------------------------------------------------------------------------

struct ErrorLogEntry {
  uint64_t error_count;  // of the controller's life, 0: no entry
  uint16_t sqid;
  uint16_t cid;
  uint16_t status;                    // StatusField
  uint16_t parameter_error_location;  // byte, and bit << 8; 0xffff: not in one field
  uint64_t lba;
  uint32_t nsid;
  uint8_t vendor_page;
  uint8_t trtype;
  uint8_t reserved30[2];
  uint64_t command_specific;
  uint16_t trtype_specific;
  uint8_t reserved42[22];
};
static_assert(offsetof(ErrorLogEntry, status) == 12);
static_assert(offsetof(ErrorLogEntry, lba) == 16);
static_assert(offsetof(ErrorLogEntry, trtype) == 29);
static_assert(offsetof(ErrorLogEntry, command_specific) == 32);
static_assert(sizeof(ErrorLogEntry) == 64);

// Integers of 128 bits are two words, the lower one first.
struct HealthLog {
  uint8_t critical_warning;
  uint8_t composite_temperature[2];  // kelvin
  uint8_t available_spare;           // percent
  uint8_t available_spare_threshold;
  uint8_t percentage_used;
  uint8_t reserved6[26];
  uint64_t data_units_read[2];  // 512,000 bytes each, rounded up
  uint64_t data_units_written[2];
  uint64_t host_read_commands[2];
  uint64_t host_write_commands[2];
  uint64_t controller_busy_time[2];  // minutes
  uint64_t power_cycles[2];
  uint64_t power_on_hours[2];
  uint64_t unsafe_shutdowns[2];
  uint64_t media_errors[2];
  uint64_t error_log_entries[2];
  uint8_t reserved192[320];
};
static_assert(offsetof(HealthLog, available_spare) == 3);
static_assert(offsetof(HealthLog, data_units_read) == 32);
static_assert(offsetof(HealthLog, error_log_entries) == 176);
static_assert(sizeof(HealthLog) == 512);

struct FirmwareSlotLog {
  uint8_t afi;  // bits 2:0: the slot in use
  uint8_t reserved1[7];
  char frs[7][kFirmwareBytes];  // slot 1 first
  uint8_t reserved64[448];
};
static_assert(offsetof(FirmwareSlotLog, frs) == 8);
static_assert(sizeof(FirmwareSlotLog) == 512);

// A word for each opcode.
struct CommandsSupportedLog {
  uint32_t admin[256];
  uint32_t io[256];
  uint8_t reserved2048[2048];
};
static_assert(offsetof(CommandsSupportedLog, io) == 1024);
static_assert(sizeof(CommandsSupportedLog) == 4096);
inline constexpr uint32_t kCommandSupported = 0x01;
inline constexpr uint32_t kCommandChangesBlocks = 0x02;

enum class TransportType : uint8_t { kRdma = 1, kFibreChannel = 2, kTcp = 3, kLoop = 0xfe };
enum class AddressFamily : uint8_t { kNone = 0, kIpv4 = 1, kIpv6 = 2, kInfiniband = 3 };
enum class SubsystemType : uint8_t {
  kDiscoveryReferral = 1,
  kNvm = 2,
  kCurrentDiscovery = 3,
};
inline constexpr uint8_t kTreqNotSpecified = 0;
inline constexpr uint8_t kTreqNoSecureChannel = 2;
inline constexpr uint8_t kTreqSqFlowControlOptional = 4;
inline constexpr uint8_t kRdmaReliableConnected = 1;  // TSAS: queue pair type
enum class RdmaProvider : uint8_t {
  kNone = 1,
  kInfiniband = 2,
  kRoce = 3,
  kRoceV2 = 4,
  kIwarp = 5
};
inline constexpr uint8_t kRdmaCm = 1;  // TSAS: connection management

struct DiscoveryEntry {
  TransportType trtype;
  AddressFamily adrfam;
  SubsystemType subtype;
  uint8_t treq;
  uint16_t portid;
  uint16_t cntlid;  // kDynamicController
  uint16_t asqsz;   // entries of an admin queue at most
  uint16_t eflags;
  uint8_t reserved12[20];
  char trsvcid[32];  // padded with blanks, as is traddr
  uint8_t reserved64[192];
  char subnqn[kNqnFieldBytes];
  char traddr[256];
  uint8_t rdma_qptype;  // TSAS of RDMA, 256 bytes from here
  RdmaProvider rdma_prtype;
  uint8_t rdma_cms;
  uint8_t reserved771[5];
  uint16_t rdma_pkey;
  uint8_t reserved778[246];
};
static_assert(offsetof(DiscoveryEntry, portid) == 4);
static_assert(offsetof(DiscoveryEntry, asqsz) == 8);
static_assert(offsetof(DiscoveryEntry, trsvcid) == 32);
static_assert(offsetof(DiscoveryEntry, subnqn) == 256);
static_assert(offsetof(DiscoveryEntry, traddr) == 512);
static_assert(offsetof(DiscoveryEntry, rdma_qptype) == 768);
static_assert(offsetof(DiscoveryEntry, rdma_pkey) == 776);
static_assert(sizeof(DiscoveryEntry) == 1024);

// Comes before the entries.
struct DiscoveryLogHeader {
  uint64_t genctr;  // changes with the page
  uint64_t numrec;
  uint16_t recfmt;  // 0
  uint8_t reserved18[1006];
};
static_assert(offsetof(DiscoveryLogHeader, recfmt) == 16);
static_assert(sizeof(DiscoveryLogHeader) == 1024);

// Nothing that is sent has padding, because that would carry bytes of this process's memory.
static_assert(std::has_unique_object_representations_v<IdentifyController>);
static_assert(std::has_unique_object_representations_v<IdentifyNamespace>);
static_assert(std::has_unique_object_representations_v<IdentifyNvmController>);
static_assert(std::has_unique_object_representations_v<ErrorLogEntry>);
static_assert(std::has_unique_object_representations_v<HealthLog>);
static_assert(std::has_unique_object_representations_v<FirmwareSlotLog>);
static_assert(std::has_unique_object_representations_v<CommandsSupportedLog>);
static_assert(std::has_unique_object_representations_v<DiscoveryEntry>);
static_assert(std::has_unique_object_representations_v<DiscoveryLogHeader>);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_NVME_DATA_H_
