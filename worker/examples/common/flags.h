// The command lines of the examples' and the tests' programs.
//
// CLI11 parses them, and prints help and errors. Its header takes seconds to compile: flags.cc
// alone includes it.
#ifndef WORKER_EXAMPLES_COMMON_FLAGS_H_
#define WORKER_EXAMPLES_COMMON_FLAGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace baton::examples {

// A flag that was added, to say what else holds of its values. It is valid as long as its Flags.
class Flag {
 public:
  Flag Required();
  // Both ends are included.
  Flag Within(int least, int most);
  Flag Within(uint64_t least, uint64_t most);
  Flag Within(double least, double most);
  Flag OneOf(const std::vector<std::string>& values);
  // One argument may be several values, with commas between them.
  Flag SplitAtCommas();
  // Only one of the two may be given.
  Flag Excludes(Flag other);

 private:
  friend class Flags;
  explicit Flag(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// The flags of a program. Pointers must be valid until the flags are parsed. A flag that is not
// given leaves its value as it is. A list takes all arguments up to the next flag, and replaces
// what is in the vector.
//
// A name is "--name", "-n,--name", or "name" for an argument that is told by its place. Adding it
// twice throws CLI::OptionAlreadyAdded.
//
// Thread-compatible.
class Flags {
 public:
  // `description` is the first line of --help.
  explicit Flags(const std::string& description);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  Flag Add(const std::string& name, int* value, const std::string& help = "");
  Flag Add(const std::string& name, uint16_t* value, const std::string& help = "");
  Flag Add(const std::string& name, uint32_t* value, const std::string& help = "");
  Flag Add(const std::string& name, uint64_t* value, const std::string& help = "");
  Flag Add(const std::string& name, double* value, const std::string& help = "");
  Flag Add(const std::string& name, std::string* value, const std::string& help = "");
  Flag Add(const std::string& name, std::vector<uint32_t>* values, const std::string& help = "");
  Flag Add(const std::string& name, std::vector<std::string>* values, const std::string& help = "");
  // An enumerator is given by its name or as a number. Enum's underlying type is uint8_t.
  template <typename Enum>
  Flag Add(const std::string& name, Enum* value, const std::map<std::string, Enum>& names,
           const std::string& help) {
    return AddEnumerator(name, NumbersOf(names), help,
                         [value](uint8_t number) { *value = static_cast<Enum>(number); });
  }
  template <typename Enum>
  Flag Add(const std::string& name, std::vector<Enum>* values,
           const std::map<std::string, Enum>& names, const std::string& help) {
    const auto take = [values](const std::vector<uint8_t>& given) {
      values->clear();
      for (const uint8_t number : given) values->push_back(static_cast<Enum>(number));
    };
    return AddEnumerators(name, NumbersOf(names), help, take);
  }
  // A flag without a value, which sets `*is_given` to true.
  Flag Switch(const std::string& name, bool* is_given, const std::string& help = "");
  // Adds a command, and returns its own flags, which this must outlive. Where there are commands,
  // one has to be given; Parse calls its `run`.
  Flags Command(const std::string& name, const std::string& help, const std::function<void()>& run);

  // Returns the exit status if the program has to end: help was asked for and is printed, or
  // something is wrong with the arguments, and standard error says what.
  std::optional<int> Parse(int argc, const char* const* argv);

 private:
  explicit Flags(CLI::App& command);

  template <typename Enum>
  static std::map<std::string, uint8_t> NumbersOf(const std::map<std::string, Enum>& names) {
    static_assert(sizeof(Enum) == sizeof(uint8_t));
    std::map<std::string, uint8_t> numbers;
    for (const auto& [text, value] : names) numbers[text] = static_cast<uint8_t>(value);
    return numbers;
  }
  Flag AddEnumerator(const std::string& name, const std::map<std::string, uint8_t>& numbers,
                     const std::string& help, const std::function<void(uint8_t)>& take);
  Flag AddEnumerators(const std::string& name, const std::map<std::string, uint8_t>& numbers,
                      const std::string& help,
                      const std::function<void(const std::vector<uint8_t>&)>& take);

  const std::unique_ptr<CLI::App> own_;
  CLI::App& app_;  // *own_, or a command of the program's
};

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_FLAGS_H_
