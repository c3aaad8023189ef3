#include "framework/observe/trace/kernel_name.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

using absl::string_view;

bool Opens(char c) { return c == '<' || c == '(' || c == '{' || c == '['; }
bool Closes(char c) { return c == '>' || c == ')' || c == '}' || c == ']'; }

// Where `stop` first stands outside of brackets, from `begin`; else the size.
size_t FindOutside(string_view text, string_view stop, size_t begin = 0) {
  int depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    if (depth == 0 && absl::StartsWith(text.substr(i), stop)) return i;
    if (Opens(text[i])) ++depth;
    if (Closes(text[i])) --depth;
  }
  return text.size();
}

// Splits at every `separator` outside of brackets.
std::vector<string_view> Split(string_view text, string_view separator) {
  std::vector<string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = FindOutside(text, separator, begin);
    parts.push_back(
        absl::StripAsciiWhitespace(text.substr(begin, end - begin)));
    begin = end + separator.size();
  }
  return parts;
}

// "name<a, b>rest"; without arguments if there is no '<'.
struct Template {
  string_view name, arguments, rest;
  bool has_arguments = false;
};

Template ParseTemplate(string_view text) {
  const size_t open = text.find_first_of("<(");
  if (open == string_view::npos || text[open] == '(') {
    return {.name = text.substr(0, open),
            .rest = open == string_view::npos ? "" : text.substr(open)};
  }
  const size_t close = FindOutside(text, ">", open + 1);
  return {.name = text.substr(0, open),
          .arguments = text.substr(open + 1, close - open - 1),
          .rest = text.substr(std::min(close + 1, text.size())),
          .has_arguments = true};
}

// Templates that stand for one of their arguments.
struct Wrapper {
  string_view name;
  size_t argument;
};
constexpr Wrapper kWrappers[] = {
    {"Kernel", 0},                  // cutlass
    {"Kernel2", 0},                 // cutlass
    {"ReduceOp", 1},                // at::native: <scalar, function, ...>
    {"func_wrapper_t", 1},          // at::native: <scalar, function>
    {"gpu_kernel_impl", 0},         // at::native
    {"gpu_kernel_impl_nocast", 0},  // at::native
    {"__nv_hdl_wrapper_t", 3},      // nvcc: <..., tag of the lambda, type>
    {"__nv_dl_tag", 1},             // nvcc: <type, function, number>
};

// Template arguments that only say how operands are addressed.
constexpr string_view kAddressing[] = {"std::array<", "OffsetCalculator",
                                       "LoadWith", "StoreWith"};

class Shortener {
 public:
  explicit Shortener(bool every_argument) : every_argument_(every_argument) {}

  // A type or value, without its namespaces.
  std::string Short(string_view text) const {
    text = absl::StripAsciiWhitespace(text);
    absl::ConsumePrefix(&text, "&");
    if (IsCast(text)) text.remove_prefix(text.find(')') + 1);
    if (IsNumber(text)) {
      return std::string(text.substr(0, text.find_first_of("ul")));
    }
    // A lambda has no name: that of the function around it says what it does.
    std::string name, lambdas;
    for (const string_view part : Split(text, "::")) {
      if (absl::StartsWith(part, "operator")) continue;
      if (absl::StartsWith(part, "{")) {
        absl::StrAppend(&lambdas, Lambda(part));
        continue;
      }
      name = Component(part);
      lambdas.clear();
    }
    return absl::StrCat(name, lambdas);
  }

  // "name<arguments>suffix", without the parameters of a function.
  std::string Component(string_view text) const {
    const Template parsed = ParseTemplate(text);
    const string_view rest =
        absl::StartsWith(parsed.rest, "(") ? "" : parsed.rest;
    if (!parsed.has_arguments) return absl::StrCat(Name(parsed.name), rest);
    const std::vector<string_view> arguments = Split(parsed.arguments, ",");
    if (!every_argument_) {
      for (const Wrapper& wrapper : kWrappers) {
        if (parsed.name == wrapper.name &&
            wrapper.argument < arguments.size()) {
          return Short(arguments[wrapper.argument]);
        }
      }
    }
    std::vector<std::string> kept;
    for (const string_view argument : arguments) {
      if (every_argument_ || !IsAddressing(argument)) {
        kept.push_back(Short(argument));
      }
    }
    return absl::StrCat(Name(parsed.name), "<", absl::StrJoin(kept, ", "), ">",
                        rest);
  }

 private:
  // "(int)4", as other demanglers write 4.
  static bool IsCast(string_view text) {
    const size_t close = FindOutside(text, ")", 1);
    return absl::StartsWith(text, "(") && close + 1 < text.size() &&
           (absl::ascii_isdigit(text[close + 1]) || text[close + 1] == '-');
  }
  static bool IsNumber(string_view text) {
    absl::ConsumePrefix(&text, "-");
    return !text.empty() && absl::ascii_isdigit(text[0]);
  }
  static bool IsAddressing(string_view argument) {
    return absl::c_any_of(kAddressing, [&](string_view mark) {
      const size_t found = argument.find(mark);
      // Not within another type's arguments.
      return found != string_view::npos &&
             found <= argument.find_first_of("<(");
    });
  }
  // "{lambda(float)#1}" as "{float#1}": numbers start anew for each signature.
  std::string Lambda(string_view text) const {
    const size_t open = text.find('('), close = text.rfind(')');
    if (open == string_view::npos || close == string_view::npos) {
      return std::string(text);
    }
    std::vector<std::string> parameters;
    for (const string_view type :
         Split(text.substr(open + 1, close - open - 1), ",")) {
      parameters.push_back(Short(type));
    }
    return absl::StrCat("{", absl::StrJoin(parameters, ", "),
                        text.substr(close + 1));
  }
  string_view Name(string_view name) const {
    if (every_argument_) return name;
    if (name == "__nv_bfloat16" || name == "BFloat16") return "bf16";
    if (name == "__half" || name == "Half") return "fp16";
    return name;
  }

  const bool every_argument_;
};

std::string NameOf(string_view symbol, bool every_argument) {
  const std::string plain = absl::StrReplaceAll(
      symbol, {{"(anonymous namespace)::", ""}, {"<unnamed>::", ""}});
  string_view name = plain;
  const size_t parameters = FindOutside(name, "(");
  if (parameters == name.size() && !absl::StrContains(name, "<")) {
    return std::string(symbol);  // extern "C"
  }
  name = name.substr(0, parameters);
  for (size_t space = FindOutside(name, " "); space < name.size();
       space = FindOutside(name, " ")) {
    name.remove_prefix(space + 1);  // the return type
  }
  const Shortener shortener(every_argument);
  std::vector<string_view> path = Split(name, "::");
  // Families of kernels are told apart by their namespace.
  const bool ours = path.size() > 1 && path[0] == "tessera";
  const std::string base = shortener.Component(path.back());
  if (base.empty()) return std::string(symbol);  // it has no name
  if (!ours) return base;
  path.erase(path.begin());
  path.back() = base;
  return absl::StrJoin(path, "::");
}

struct NamedClass {
  string_view fragment;  // of the symbol in lower case
  KernelClass kernel_class;
};

// Kernels whose name settles it. Fused attention stands before the products, as
// some of it is built from CUTLASS.
constexpr NamedClass kSettled[] = {
    {"nccl", KernelClass::kCommunication},
    {"copy p2p", KernelClass::kCommunication},    // by copy engines
    {"all_reduce", KernelClass::kCommunication},  // symmetric memory
    {"tessera::flash::", KernelClass::kAttention},
    {"flash_fwd", KernelClass::kAttention},
    {"flash_bwd", KernelClass::kAttention},
    {"fmha", KernelClass::kAttention},
    {"sdpa", KernelClass::kAttention},  // cuDNN
    {"nvjet", KernelClass::kGemm},      // cuBLAS on Hopper and later
    {"gemm", KernelClass::kGemm},
    {"gemv", KernelClass::kGemm},
    {"xmma", KernelClass::kGemm},
    {"cutlass", KernelClass::kGemm},
    {"splitkreduce", KernelClass::kGemm},
};

// Kernels of those classes that compute no products: they sum the parts of a
// product, the rows of dO O, or dQ.
constexpr string_view kWithoutProducts[] = {
    "splitkreduce", "preprocess", "postprocess",
    "dot_do_o",     "convert_dq", "combine",
};

struct OpClassName {
  string_view op_kind;
  KernelClass kernel_class;
};

// Ops that settle it for every kernel that is no product.
constexpr OpClassName kOps[] = {
    {"attention", KernelClass::kAttention},
    {"rms_norm", KernelClass::kNorm},
    {"add_rms_norm", KernelClass::kNorm},
    {"qk_norm", KernelClass::kNorm},
    {"swiglu", KernelClass::kElementwise},
    {"relu_squared", KernelClass::kElementwise},
    {"rope", KernelClass::kElementwise},
    {"add_residual", KernelClass::kElementwise},
    {"add", KernelClass::kElementwise},
    {"cross_entropy", KernelClass::kReduction},
    {"linear_cross_entropy", KernelClass::kReduction},
};

// Kernels whose op is not known or does not settle it.
constexpr NamedClass kOthers[] = {
    {"layer_norm", KernelClass::kNorm},
    {"rms_norm", KernelClass::kNorm},
    {"rmsnorm", KernelClass::kNorm},
    {"adam", KernelClass::kOptimizer},
    {"swiglu", KernelClass::kElementwise},
    {"::rope", KernelClass::kElementwise},
    {"crossentropy", KernelClass::kReduction},
    {"elementwise", KernelClass::kElementwise},
    {"multi_tensor_apply", KernelClass::kElementwise},
    {"catarray", KernelClass::kElementwise},
    {"reduce", KernelClass::kReduction},
    {"softmax", KernelClass::kReduction},
    {"sum", KernelClass::kReduction},
};

template <size_t N>
const NamedClass* Find(const NamedClass (&table)[N], string_view lower) {
  const auto* found = absl::c_find_if(table, [&](const NamedClass& entry) {
    return absl::StrContains(lower, entry.fragment);
  });
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

std::string ReadableKernelName(string_view symbol) {
  return NameOf(symbol, /*every_argument=*/false);
}

std::string FullKernelName(string_view symbol) {
  return NameOf(symbol, /*every_argument=*/true);
}

string_view KernelClassName(KernelClass kernel_class) {
  constexpr string_view kNames[kKernelClasses] = {
      "GEMM",      "attention", "norm",          "elementwise", "reduction",
      "optimizer", "copy",      "communication", "other"};
  return kNames[static_cast<int>(kernel_class)];
}

bool ComputesProducts(string_view symbol) {
  const std::string lower = absl::AsciiStrToLower(symbol);
  const NamedClass* const named = Find(kSettled, lower);
  return named != nullptr &&
         (named->kernel_class == KernelClass::kGemm ||
          named->kernel_class == KernelClass::kAttention) &&
         absl::c_none_of(kWithoutProducts, [&](string_view fragment) {
           return absl::StrContains(lower, fragment);
         });
}

bool IsCommunication(string_view symbol) {
  const NamedClass* named = Find(kSettled, absl::AsciiStrToLower(symbol));
  return named != nullptr && named->kernel_class == KernelClass::kCommunication;
}

KernelClass ClassOf(DeviceActivity::Kind kind, string_view symbol,
                    const KernelIssuer& issuer) {
  if (kind != DeviceActivity::Kind::kKernel) {
    return IsCommunication(symbol) ? KernelClass::kCommunication
                                   : KernelClass::kCopy;
  }
  const std::string lower = absl::AsciiStrToLower(symbol);
  if (const NamedClass* named = Find(kSettled, lower)) {
    return named->kernel_class;
  }
  if (issuer.phase == "clip" || issuer.phase == "optimizer") {
    return KernelClass::kOptimizer;
  }
  for (const OpClassName& op : kOps) {
    if (issuer.op_kind == op.op_kind) return op.kernel_class;
  }
  if (const NamedClass* named = Find(kOthers, lower)) {
    return named->kernel_class;
  }
  // On a CPU an activity is named after its op.
  return issuer.op_kind == "linear" ? KernelClass::kGemm : KernelClass::kOther;
}

}  // namespace tessera
