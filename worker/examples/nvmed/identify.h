// Builds the data of Identify and Get Log Page from plain descriptions. Pure functions.
#ifndef WORKER_EXAMPLES_NVMED_IDENTIFY_H_
#define WORKER_EXAMPLES_NVMED_IDENTIFY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/capsule.h"
#include "worker/examples/nvmed/nvme_data.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

// Serial, model and firmware are printable ASCII.
struct SubsystemDescription {
  std::string nqn;
  std::string serial;                    // at most 20 characters
  std::string model;                     // at most 40
  std::string firmware;                  // at most 8
  uint16_t vendor_id = 0;                // PCI's; 0: none, as is usual in fabrics
  std::array<uint8_t, 3> ieee_oui = {};  // least significant byte first
  uint32_t max_nsid = 1;                 // NN
};

struct NamespaceDescription {
  uint32_t nsid = 0;
  uint64_t block_count = 0;
  uint8_t block_shift = 9;
  // Identifiers, most significant byte first; all zero: none. Each namespace needs at least one.
  std::array<uint8_t, 16> uuid = {};
  std::array<uint8_t, 16> nguid = {};
  std::array<uint8_t, 8> eui64 = {};
  bool shared = true;  // several controllers may attach it
  bool write_protected = false;
  bool write_zeroes = false;            // the command
  bool deallocate = false;              // Dataset Management; what is deallocated reads as zeros
  uint32_t preferred_write_blocks = 0;  // granularity and alignment; 0: not reported
};

// A controller supports each command that at least one of its namespaces supports. On a namespace
// that does not support it, the command is an invalid opcode.
struct ControllerDescription {
  bool is_discovery = false;
  uint16_t cntlid = 0;
  uint32_t version = Version(1, 4, 0);  // VS
  uint16_t max_commands = 128;          // outstanding on one I/O queue: MAXCMD
  uint8_t mdts = 0;                     // 1 << mdts pages of 4 KiB; 0: no limit
  uint32_t ioccsz = 4;                  // 16 bytes each: 4 + in-capsule data / 16
  uint32_t iorcsz = 1;
  uint16_t kas = 10;                // granularity of keep alive in 100 ms, not 0
  bool traffic_keep_alive = false;  // any command is as good as a Keep Alive (TBKAS)
  uint32_t oaes = 0;                // kAsyncEvent...
  uint8_t acl = 3;                  // Aborts outstanding, zero-based
  uint8_t aerl = 3;                 // Asynchronous Event Requests outstanding, zero-based
  uint8_t elpe = 0;                 // entries of the error log, zero-based
  bool compare = false;
  bool write_zeroes = false;
  bool deallocate = false;  // Dataset Management
  bool volatile_write_cache = false;
  // Limits of Write Zeroes (1 << wzsl pages of 4 KiB) and Dataset Management (ranges, blocks of
  // one, blocks of all); 0: none.
  uint8_t wzsl = 0;
  uint8_t dmrl = 0;
  uint32_t dmrsl = 0;
  uint64_t dmsl = 0;
};

// kInvalidArgument: a field, which the message names, cannot be reported to a host.
absl::Status Validate(const SubsystemDescription& subsystem);
absl::Status Validate(const NamespaceDescription& description);
absl::Status Validate(const ControllerDescription& controller);

// Returns the limits of the controller's queues. Without MDTS the length field of a data pointer is
// the limit.
CapsuleLimits LimitsOf(const ControllerDescription& controller, bool admin_queue);

// CNS 01h. The texts of a description are cut where Validate would refuse them.
IdentifyController BuildIdentifyController(const SubsystemDescription& subsystem,
                                           const ControllerDescription& controller);
// CNS 06h, of the NVM command set.
IdentifyNvmController BuildIdentifyNvmController(const ControllerDescription& controller);
// CNS 00h. A namespace that is not attached is reported as a structure of zeros:
// IdentifyNamespace{}.
IdentifyNamespace BuildIdentifyNamespace(const NamespaceDescription& description);
// CNS 02h: the NSIDs above `after`. `nsids` must increase.
NamespaceList BuildNamespaceList(absl::Span<const uint32_t> nsids, uint32_t after);
// CNS 03h.
std::array<uint8_t, kIdentifyBytes> BuildNamespaceDescriptors(
    const NamespaceDescription& description);

// The arguments of a Get Log Page command.
struct LogPageRequest {
  LogPageId page = LogPageId::kSupportedPages;
  uint8_t specific = 0;  // LSP
  bool retain_async_event = false;
  bool offset_is_index = false;
  uint64_t offset = 0;  // bytes
  uint64_t length = 0;  // bytes, at least 4, up to 1 << 34
};
LogPageRequest LogPageRequestOf(const SubmissionEntry& command);

// Copies the piece of `page` at request.offset into `out`, whose length must be the request's, and
// fills it with zeros beyond the page's end. kInvalidField: the offset is no multiple of 4, is an
// index, or is beyond the page; `out` is then unchanged.
StatusCode CopyLogPage(absl::Span<const uint8_t> page, const LogPageRequest& request,
                       absl::Span<uint8_t> out);

// Counters of the SMART / health log. Counters that have 128 bits there have 64 here.
struct HealthDescription {
  uint16_t temperature_kelvin = 300;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t host_read_commands = 0;
  uint64_t host_write_commands = 0;
  uint64_t power_cycles = 0;
  uint64_t power_on_hours = 0;
  uint64_t unsafe_shutdowns = 0;
  uint64_t media_errors = 0;
  uint64_t error_log_entries = 0;
};
HealthLog BuildHealthLog(const HealthDescription& health);
FirmwareSlotLog BuildFirmwareSlotLog(const SubsystemDescription& subsystem);
CommandsSupportedLog BuildCommandsSupportedLog(const ControllerDescription& controller);
// Lists 1024 namespaces at most. If more have changed, one entry says that any may have. `nsids`
// must increase.
NamespaceList BuildChangedNamespaceList(absl::Span<const uint32_t> nsids);
// Returns ELPE + 1 entries: the first (newest) ones of `entries`, then entries of zeros.
std::vector<ErrorLogEntry> BuildErrorLog(const ControllerDescription& controller,
                                         absl::Span<const ErrorLogEntry> entries);

struct DiscoveryDescription {
  SubsystemType subtype = SubsystemType::kNvm;
  std::string subnqn;
  AddressFamily adrfam = AddressFamily::kIpv4;
  std::string traddr;   // as text: "10.0.0.1"
  std::string trsvcid;  // "4420"
  uint16_t portid = 0;
  uint16_t max_admin_queue_entries = kMinAdminQueueEntries;
  RdmaProvider provider = RdmaProvider::kNone;
};
absl::Status Validate(const DiscoveryDescription& entry);
// Returns the header and its entries. `generation` must change whenever the page changes.
std::vector<uint8_t> BuildDiscoveryLog(uint64_t generation,
                                       absl::Span<const DiscoveryDescription> entries);

// Returns the bytes of a structure above, for CopyLogPage and for the wire.
template <typename T>
absl::Span<const uint8_t> BytesOf(const T& data) {
  static_assert(std::has_unique_object_representations_v<T>);
  return {reinterpret_cast<const uint8_t*>(&data), sizeof(data)};
}
// The same for a list of structures.
template <typename T>
absl::Span<const uint8_t> BytesOf(const std::vector<T>& data) {
  static_assert(std::has_unique_object_representations_v<T>);
  return {reinterpret_cast<const uint8_t*>(data.data()), data.size() * sizeof(T)};
}

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_IDENTIFY_H_
