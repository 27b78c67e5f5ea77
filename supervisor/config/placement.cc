#include "supervisor/config/placement.h"

#include <cstddef>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr size_t kMaxFileBytes = 64 << 10;
constexpr char kNodes[] = "/sys/devices/system/node/";

}  // namespace

std::optional<std::string> ReadSystemFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::optional<uint32_t> NodeOfDevice(const std::string& device, const ReadFileFunction& read) {
  // "0" on a machine with one node, "0-1" with two.
  const auto online = read(absl::StrCat(kNodes, "online"));
  if (!online || online->find_first_of("-,") == std::string::npos) return std::nullopt;
  const auto text = read(absl::StrCat("/sys/class/infiniband/", device, "/device/numa_node"));
  uint32_t node = 0;  // the file has "-1" if the kernel knows none
  if (!text || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &node)) return std::nullopt;
  return node;
}

v1::Placement PlacementOf(const v1::Placement& configured, const std::string& device,
                          const ReadFileFunction& read) {
  v1::Placement placement = configured;
  if (!placement.has_numa_node() && !device.empty()) {
    const std::optional<uint32_t> node = NodeOfDevice(device, read);
    if (node) placement.set_numa_node(*node);
  }
  if (placement.cpus().empty() && placement.has_numa_node()) {
    const auto cpus = read(absl::StrCat(kNodes, "node", placement.numa_node(), "/cpulist"));
    // The file is empty for a node that has memory alone.
    if (cpus) placement.set_cpus(std::string(absl::StripAsciiWhitespace(*cpus)));
  }
  return placement;
}

std::string DescribePlacement(const v1::Placement& placement) {
  std::string text;
  if (!placement.cpus().empty()) absl::StrAppend(&text, "CPUs ", placement.cpus());
  if (placement.has_numa_node()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "memory of NUMA node ", placement.numa_node());
  }
  return text;
}

}  // namespace baton
