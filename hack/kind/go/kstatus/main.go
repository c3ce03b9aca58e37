// Reads a JSON list of objects and writes the list of their statuses, as kstatus computes them.
package main

import (
	"encoding/json"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	var objects []map[string]any
	// Whole numbers become int64, as objects have them.
	if err := utiljson.Unmarshal(text, &objects); err != nil {
		log.Fatal(err)
	}
	found := []string{}
	for _, object := range objects {
		result, err := status.Compute(&unstructured.Unstructured{Object: object})
		if err != nil {
			log.Fatal(err)
		}
		found = append(found, string(result.Status))
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
